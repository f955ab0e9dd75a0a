// What the engine does, as /load, /requests and /metrics say it. Nothing is asked while nobody looks.

import { getJson, send } from "./api.js";
import { bytes, byId, facts, make, number } from "./dom.js";
import { Bars, Pool } from "./requests.js";

const PERIOD_MS = 1000;
const TOTALS_EVERY = 5; // of those periods: /metrics is long, and these change slowly
const HISTORY = 120;
const SVG = "http://www.w3.org/2000/svg";

let isOpen = false;
let timer = null;
let isAsking = false;
let round = 0;
let blockBytes = null;
let refusal = null; // of engines that do not list what they hold
const ranks = new Map();

export function open(isShown) {
  isOpen = isShown;
  clearTimeout(timer);
  if (isOpen) tick();
}

export function setUp() {
  document.addEventListener("visibilitychange", () => open(isOpen));
}

async function tick() {
  if (!isOpen || document.hidden || isAsking) return;
  isAsking = true;
  const began = performance.now();
  try {
    const [{ loads }, states] = await Promise.all([getJson("load"), listed()]);
    for (const one of loads) {
      rankOf(one.data_parallel_rank).show(one, states.find((each) => each.data_parallel_rank === one.data_parallel_rank), began);
    }
    if (round % TOTALS_EVERY === 0) await showTotals();
    round += 1;
    byId("engine-error").textContent = "";
  } catch (error) {
    byId("engine-error").textContent = error.message;
    if (error.status === 401) dispatchEvent(new CustomEvent("needs-key"));
  }
  isAsking = false;
  clearTimeout(timer);
  if (isOpen && !document.hidden) timer = setTimeout(tick, PERIOD_MS);
}

async function listed() {
  if (refusal !== null) return [];
  try {
    return (await getJson("requests")).engines;
  } catch (error) {
    if (error.status !== 400) throw error; // this engine has no such list
    refusal = error.message;
    return [];
  }
}

function rankOf(number) {
  if (!ranks.has(number)) {
    const view = new Rank(number);
    ranks.set(number, view);
    byId("ranks").append(view.node);
  }
  return ranks.get(number);
}

/** A named value with what belongs to it. */
class Panel {
  constructor(title, ...parts) {
    this.value = make("p", { className: "value" }, "–");
    this.note = make("p", { className: "soft" });
    this.node = make("div", { className: "panel" }, make("h4", {}, title), this.value, ...parts, this.note);
  }

  show(value, note = "") {
    this.value.textContent = value;
    this.note.textContent = note;
  }
}

class Line {
  #values = [];

  constructor(label) {
    this.node = document.createElementNS(SVG, "svg");
    this.node.setAttribute("viewBox", `0 0 ${HISTORY - 1} 100`);
    this.node.setAttribute("preserveAspectRatio", "none");
    this.node.setAttribute("role", "img");
    this.node.setAttribute("aria-label", label);
    this.line = document.createElementNS(SVG, "polyline");
    this.node.append(this.line);
  }

  add(value) {
    this.#values = [...this.#values, value].slice(-HISTORY);
    const top = Math.max(...this.#values, 1e-9);
    const from = HISTORY - this.#values.length;
    const points = this.#values.map((one, i) => `${from + i},${(98 - 96 * one / top).toFixed(1)}`);
    this.line.setAttribute("points", points.join(" "));
  }
}

function bar() {
  const fill = make("i");
  return { node: make("div", { className: "bar", "aria-hidden": "true" }, fill),
    show: (share) => fill.style.setProperty("--share", Math.min(share, 1).toFixed(4)) };
}

class Rank {
  #last = null;
  #running = bar();
  #waiting = bar();
  #tokens = new Line("Tokens per second over the last two minutes");
  #steps = new Line("Steps per second over the last two minutes");
  #pool = new Pool();
  #bars = new Bars();
  #panels = {
    running: new Panel("Requests running", this.#running.node),
    waiting: new Panel("Requests waiting", this.#waiting.node),
    tokens: new Panel("Tokens per second", this.#tokens.node),
    steps: new Panel("Steps per second", this.#steps.node),
    cache: new Panel("Prompt tokens found in the prefix cache"),
    pool: new Panel("KV pool", this.#pool.node),
  };

  constructor(number) {
    const panels = Object.values(this.#panels).map((panel) => panel.node);
    this.#panels.pool.node.classList.add("whole");
    this.node = make("section", { "aria-label": `Rank ${number}` },
      make("h3", {}, `Rank ${number}`), make("div", { className: "panels" }, panels), this.#bars.node);
  }

  show(load, states, now) {
    const panels = this.#panels;
    panels.running.show(number(load.num_running), `of at most ${number(load.max_running)} at once`);
    this.#running.show(load.num_running / Math.max(load.max_running, 1));
    panels.waiting.show(number(load.num_waiting),
      `with ${number(load.num_waiting_uncached_tokens)} prompt tokens to compute`);
    this.#waiting.show(load.num_waiting / Math.max(load.num_waiting + load.num_running, 1));
    panels.tokens.show(number(load.gen_throughput), drafts(load));
    this.#tokens.add(load.gen_throughput);
    this.#showSteps(load, now);
    this.#showPool(load);
    if (states) this.#bars.show(states);
    else if (refusal !== null) this.#bars.refuse(refusal);
    this.#pool.show(states ?? { ...load, requests: [], num_shared_blocks: 0, num_cached_blocks: 0 });
    panels.cache.show(`${number(100 * load.cache_hit_rate, 1)} %`, "over a recent window");
  }

  #showSteps(load, now) {
    const last = this.#last;
    this.#last = { steps: load.num_steps, now };
    const note = `${number(load.num_steps)} so far, ${number(load.num_preemptions)} preemptions`;
    if (!last || load.num_steps < last.steps) {
      this.#panels.steps.show("–", note);
      return;
    }
    const rate = 1000 * (load.num_steps - last.steps) / Math.max(now - last.now, 1);
    this.#panels.steps.show(number(rate), note);
    this.#steps.add(rate);
  }

  #showPool(load) {
    const blocks = Math.max(load.num_blocks, 1);
    const size = blockBytes ? `, ${bytes(blockBytes * load.num_held_blocks)} of ${bytes(blockBytes * load.num_blocks)}` : "";
    this.#panels.pool.show(`${number(100 * load.num_held_blocks / blocks, 1)} % held`,
      `${number(load.num_held_blocks)} of ${number(load.num_blocks)} blocks${size}; ` +
      `${number(load.num_used_tokens)} of ${number(load.max_total_tokens)} tokens in running requests`);
  }
}

function drafts(load) {
  if (!load.num_draft_tokens) return "generated, over a recent window";
  return `${number(100 * load.num_accepted_tokens / load.num_draft_tokens)} % of drafted tokens accepted`;
}

async function showTotals() {
  const series = parse(await (await send("metrics")).text());
  const sum = (name) => series.filter((one) => one.name === name).reduce((all, one) => all + one.value, 0);
  const mean = (name) => (sum(`${name}_count`)
    ? `${number(1000 * sum(`${name}_sum`) / sum(`${name}_count`), 1)} ms` : "–");
  const ends = series.filter((one) => one.name === "vllm:request_success_total" && one.value)
    .map((one) => `${number(one.value)} ${one.labels.finished_reason}`);
  const config = series.find((one) => one.name === "vllm:cache_config_info");
  blockBytes = Number(config?.labels.block_bytes ?? 0) || null;
  const queries = sum("vllm:prefix_cache_queries_total");
  const hits = sum("vllm:prefix_cache_hits_total");
  const pairs = [
    ["Requests ended", ends.join(", ") || "none"],
    ["Prompt tokens", number(sum("vllm:prompt_tokens_total"))],
    ["of them cached", queries ? `${number(hits)} (${number(100 * hits / queries, 1)} %)` : "–"],
    ["Generated tokens", number(sum("vllm:generation_tokens_total"))],
    ["Time in the queue, mean", mean("vllm:request_queue_time_seconds")],
    ["Prefill, mean", mean("vllm:request_prefill_time_seconds")],
    ["Time to the first token, mean", mean("vllm:time_to_first_token_seconds")],
    ["Between tokens, mean", mean("vllm:inter_token_latency_seconds")],
    ["Decode, mean", mean("vllm:request_decode_time_seconds")],
    ["Memory of the server's process", bytes(sum("process_resident_memory_bytes"))],
  ];
  byId("totals").replaceChildren(...facts(pairs));
}

/** Prometheus's text as `{ name, labels, value }`. */
function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = /^([\w:]+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found || line.startsWith("#")) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    samples.push({ name: found[1], labels, value: Number(found[3]) });
  }
  return samples;
}
