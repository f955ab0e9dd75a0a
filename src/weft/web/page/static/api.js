// Requests to the server that the page came from. The key is in this tab's session and nowhere else.

const KEY = "weft.key";

export const key = () => sessionStorage.getItem(KEY) ?? "";
export function setKey(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

const LOST = "the server cannot be reached";
const CUT = "the connection to the server was lost";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The response, if it is a good one. Paths are relative: the page may be behind a path of a proxy. */
export async function send(path, { body, form, signal } = {}) {
  const headers = key() ? { authorization: `Bearer ${key()}` } : {};
  const init = { headers, signal, credentials: "omit", cache: "no-store" };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    Object.assign(init, { method: "POST", body: JSON.stringify(body) });
  }
  if (form !== undefined) Object.assign(init, { method: "POST", body: form });
  let response;
  try {
    response = await fetch(path, init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, LOST);
  }
  if (!response.ok) throw new Refused(response.status, await reason(response));
  return response;
}

async function reason(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.slice(0, 300) || `the server answered ${response.status}`;
  }
}

export const getJson = async (path) => (await send(path)).json();

/** The data of each event of a stream; an error in it is thrown, and so is an end before the stream says that it is over. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await part(reader);
      if (done) throw new Refused(0, CUT);
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split("\n").filter((line) => line.startsWith("data:"));
        const data = lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
        if (data === "[DONE]") return;
        if (!data) continue;
        const event = JSON.parse(data);
        if (event.error) throw new Refused(event.error.code ?? 0, event.error.message);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function part(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, CUT);
  }
}
