"""Programs written for vLLM, on weft-vllm: plain scripts, LangChain's class and LlamaIndex's. No server is asked."""

from asking import ANSWER, CAPITAL, PERSON_SCHEMA, is_person, refused, run
from langchain_community.llms import VLLM
from llama_index.llms.vllm import Vllm
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import GuidedDecodingParams, StructuredOutputsParams

MODEL = "embedded:tiny"
TEXT = "The capital of France is"
greedy = {"temperature": 0.0, "top_k": -1}


def chat() -> None:
    """The first lines of vLLM's quickstart, and a conversation; a request's settings may be changed."""
    llm = LLM(model=MODEL, tensor_parallel_size=1, gpu_memory_utilization=0.3, max_model_len=512)
    params = SamplingParams(max_tokens=8, n=1, **greedy)
    params.logprobs = 2
    (output,) = llm.generate([TEXT], params, use_tqdm=False)
    assert output.prompt == TEXT
    assert output.finished
    answer = output.outputs[0]
    assert ANSWER in answer.text
    chosen = answer.logprobs[0][answer.token_ids[0]]
    assert chosen.rank == 1
    assert chosen.decoded_token in answer.text
    said = llm.chat([{"role": "user", "content": CAPITAL}], params.clone())
    assert ANSWER in said[0].outputs[0].text
    assert llm.get_tokenizer().encode(TEXT)


def tools() -> None:
    """The classes of LangChain and LlamaIndex, as their pages show them."""
    chain = VLLM(
        model=MODEL, max_new_tokens=8, top_p=0.95, temperature=0.0,
        vllm_kwargs={"max_model_len": 512, "swap_space": 1},
    )  # fmt: skip
    assert ANSWER in chain.invoke(TEXT)
    assert [ANSWER in text for text in chain.batch([TEXT, TEXT])] == [True, True]
    index = Vllm(
        model=MODEL, max_new_tokens=8, temperature=0.0,
        vllm_kwargs={"swap_space": 1, "gpu_memory_utilization": 0.3, "max_model_len": 512},
    )  # fmt: skip
    assert ANSWER in index.complete(TEXT).text


def schema() -> None:
    """By the name of today and that of older releases."""
    llm = LLM(MODEL, max_model_len=512)
    for params in (
        SamplingParams(
            max_tokens=60, structured_outputs=StructuredOutputsParams(json=PERSON_SCHEMA), **greedy
        ),
        SamplingParams(
            max_tokens=60, guided_decoding=GuidedDecodingParams(json=PERSON_SCHEMA), **greedy
        ),
    ):
        assert is_person(llm.generate(CAPITAL, params)[0].outputs[0].text)


def embeddings() -> None:
    """In the wrapping that programs take apart."""
    llm = LLM(MODEL, runner="pooling", max_model_len=512)
    one, two = llm.embed(["one", "two"])
    assert len(one.outputs.embedding) == len(two.outputs.embedding)
    (scored,) = llm.score("one", "one")
    assert abs(scored.outputs.score - 1) < 1e-3


def errors() -> None:
    """What is not there says so, by its name."""

    def from_import() -> None:
        from vllm import LLMEngine  # noqa: F401 - it is what is tried

    assert "AsyncLLMEngine" in str(refused(ImportError, from_import))
    assert "best_of" in str(refused(ValueError, SamplingParams, best_of=3))
    llm = LLM(MODEL, max_model_len=512)
    assert "chat_template" in str(refused(NotImplementedError, llm.chat, [], chat_template="x"))
    assert "llm_engine" in str(refused(AttributeError, getattr, llm, "llm_engine"))
    assert LoRARequest("name", 1, "/somewhere").lora_name == "name"
    assert "tensor_parallel_size" in str(refused(Exception, LLM, MODEL, tensor_parallel_size=2))


run(chat, tools, schema, embeddings, errors)
