// The `ai` package of npm with OpenAI's provider and the one for compatible servers. Called as the
// scripts in Python are: the address, that of the server that embeds, and the names of the parts.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embedMany, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [address, embeddingAddress, ...wanted] = process.argv.slice(2);
const MODEL = "tiny";
const CAPITAL = "What is the capital of France?";
const WEATHER = "What is the weather in Oslo?";
const RESULT = { temperature: 21, condition: "sunny" };
const at = (where) =>
  createOpenAICompatible({
    name: "weft", baseURL: `${where}/v1`, apiKey: "none", includeUsage: true, supportsStructuredOutputs: true,
  });
const model = at(address).chatModel(MODEL);
const responsesModel = createOpenAI({ baseURL: `${address}/v1`, apiKey: "none" }).responses(MODEL);
const settings = { temperature: 0, maxOutputTokens: 200, maxRetries: 0 };
const isTold = (text) => assert.ok(text.includes("21") && text.includes("sunny"), text);

function tools(calls = []) {
  return {
    get_weather: tool({
      description: "Get the weather in a city",
      inputSchema: z.object({ city: z.string() }),
      execute: async (input) => {
        calls.push(input);
        return RESULT;
      },
    }),
    set_timer: tool({
      description: "Start a timer",
      inputSchema: z.object({ minutes: z.number().int() }),
    }),
  };
}

async function agent(asked) {
  const calls = [];
  const made = await generateText({
    model: asked, prompt: WEATHER, tools: tools(calls), stopWhen: stepCountIs(3), ...settings,
  });
  assert.deepEqual(calls, [{ city: "Oslo" }]);
  isTold(made.text);
}

const parts = {
  async chat() {
    const made = await generateText({ model, prompt: CAPITAL, ...settings });
    assert.match(made.text, /Paris/);
    assert.equal(made.finishReason, "stop");
    assert.ok(made.usage.outputTokens > 0);
  },
  async stream() {
    const made = streamText({ model, prompt: CAPITAL, ...settings });
    const pieces = [];
    for await (const piece of made.textStream) pieces.push(piece);
    assert.match(pieces.join(""), /Paris/);
    assert.ok((await made.usage).outputTokens > 0);
  },
  async tools() {
    await agent(model);
  },
  async streamed_tools() {
    const calls = [];
    const made = streamText({
      model, prompt: WEATHER, tools: tools(calls), stopWhen: stepCountIs(3), ...settings,
    });
    isTold(await made.text);
    assert.deepEqual(calls, [{ city: "Oslo" }]);
  },
  async forced_tools() {
    const some = await generateText({
      model, prompt: CAPITAL, tools: tools(), toolChoice: "required", ...settings,
    });
    assert.ok(some.toolCalls.length > 0);
    const named = await generateText({
      model, prompt: CAPITAL, tools: tools(),
      toolChoice: { type: "tool", toolName: "set_timer" }, ...settings,
    });
    assert.equal(named.toolCalls[0].toolName, "set_timer");
    assert.ok(Number.isInteger(named.toolCalls[0].input.minutes));
  },
  async schema() {
    const made = await generateObject({
      model, prompt: CAPITAL, ...settings,
      schema: z.object({ age: z.number().int().min(0).max(120), is_tall: z.boolean() }),
    });
    assert.ok(Number.isInteger(made.object.age));
  },
  async errors() {
    const stranger = at(address).chatModel("nobody");
    const error = await generateText({ model: stranger, prompt: CAPITAL, ...settings }).catch((raised) => raised);
    assert.ok(APICallError.isInstance(error), String(error));
    assert.equal(error.statusCode, 404);
  },
  async responses() {
    const made = await generateText({ model: responsesModel, prompt: CAPITAL, ...settings });
    assert.match(made.text, /Paris/);
    await agent(responsesModel);
  },
  async embeddings() {
    const embedder = at(embeddingAddress).textEmbeddingModel(MODEL);
    const made = await embedMany({ model: embedder, values: ["one", "two"], maxRetries: 0 });
    assert.equal(made.embeddings[0].length, made.embeddings[1].length);
  },
};

const outcomes = {};
for (const name of wanted.filter((name) => name in parts)) {
  try {
    await parts[name]();
    outcomes[name] = "ok";
  } catch (error) {
    outcomes[name] = String(error.stack ?? error);
  }
}
console.log(JSON.stringify(outcomes));
