// A request as a command or a program to take elsewhere. The key is not in it.

import { byId } from "./dom.js";

// What the openai package has arguments for; the rest goes into its extra_body.
const OPENAI = new Set(["model", "messages", "temperature", "top_p", "max_tokens", "seed", "stop", "n", "logprobs",
  "top_logprobs", "tools", "response_format", "presence_penalty", "frequency_penalty", "stream", "stream_options"]);

const address = () => new URL(".", location.href).href.replace(/\/$/, "");

export function asCurl(body, needsKey) {
  const json = JSON.stringify(body, null, 1).replaceAll("'", "'\\''");
  const header = needsKey ? ` \\\n  --header "Authorization: Bearer $WEFT_API_KEY"` : "";
  return `curl --no-buffer ${address()}/v1/chat/completions${header} \\\n  --json '${json}'\n`;
}

export function asPython(body, needsKey) {
  const own = Object.entries(body).filter(([name]) => OPENAI.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !OPENAI.has(name)));
  const parameters = own.map(([name, value]) => `    ${name}=${literal(value)},\n`);
  if (Object.keys(extra).length) parameters.push(`    extra_body=${literal(extra)},\n`);
  return `${needsKey ? "import os\n\n" : ""}import openai

client = openai.OpenAI(base_url=${literal(`${address()}/v1`)}, api_key=${needsKey ? 'os.environ["WEFT_API_KEY"]' : '"none"'})
chunks = client.chat.completions.create(
${parameters.join("")})
for chunk in chunks:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
print()
`;
}

/** A JSON value in Python's words. */
function literal(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

/** To the clipboard, or where a browser does not give it to a page, on the screen. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    byId("copy-text").value = text;
    byId("copy-dialog").showModal();
    byId("copy-text").select();
    return false;
  }
}
