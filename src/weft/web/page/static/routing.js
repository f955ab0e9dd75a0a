// What a picker knows of its workers, and its last decisions with their scores. Nothing is asked while nobody looks.

import { getJson } from "./api.js";
import { byId, facts, make, number } from "./dom.js";
import { start } from "./start.js";

const PERIOD_MS = 1000;
const MAX_DECISIONS = 25;
const MAX_FETCHED = 100;
const STALE_S = 5;

let timer = null;
let isAsking = false;
const workers = new Map();
const decisions = []; // the newest first
let after = 0; // when the last one was made that was fetched

async function tick() {
  clearTimeout(timer);
  if (document.hidden || isAsking) return;
  isAsking = true;
  try {
    const [state, newest] = await Promise.all(
      [getJson("debug/plugins/state"), getJson(`debug/decisions?limit=${MAX_FETCHED}&after=${after}`)]);
    showWorkers(state);
    showDecisions(newest);
    byId("error").textContent = "";
  } catch (error) {
    byId("error").textContent = error.message;
    if (error.status === 401) dispatchEvent(new CustomEvent("needs-key"));
  }
  isAsking = false;
  timer = setTimeout(tick, PERIOD_MS);
}

class Worker {
  #value = make("p", { className: "value" });
  #pool = make("i");
  #note = make("p", { className: "soft" });

  constructor(row) {
    const labels = Object.entries(row.labels).map(([name, value]) => `${name}=${value}`).join(", ");
    this.node = make("div", { className: "panel" }, make("h3", {}, row.address),
      make("p", { className: "soft" }, labels), this.#value,
      make("div", { className: "bar", "aria-hidden": "true" }, this.#pool), this.#note);
  }

  show({ load, load_age_s: age, is_refusing: isRefusing, unseen_requests: unseen }) {
    this.#value.textContent = `${number(load.num_running)} running, ${number(load.num_waiting)} waiting`;
    this.#pool.style.setProperty("--share", Math.min(load.kv_usage, 1).toFixed(4));
    const parts = [`KV pool ${number(100 * load.kv_usage, 1)} %`, `${number(unseen)} sent since`];
    if (isRefusing) parts.push("refuses connections");
    else if (age === null) parts.push("its load is not known yet");
    else if (age > STALE_S) parts.push(`its load is ${number(age)} s old`);
    this.#note.textContent = parts.join(" · ");
  }
}

function showWorkers(state) {
  const gone = new Set(workers.keys());
  for (const row of state.rows) {
    gone.delete(row.address);
    if (!workers.has(row.address)) workers.set(row.address, new Worker(row));
    workers.get(row.address).show(row);
  }
  for (const address of gone) workers.delete(address);
  const nodes = [...workers.values()].map((worker) => worker.node);
  const shown = byId("workers");
  if (nodes.length !== shown.children.length || nodes.some((node, i) => node !== shown.children[i])) {
    shown.replaceChildren(...nodes);
  }
  const more = state.endpoints > state.rows.length ? ` (${state.rows.length} of them shown)` : "";
  byId("counts").textContent = `${number(state.endpoints)} workers${more}, ${number(state.open_requests)} open streams of ` +
    `the gateway, ${number(state.waiting_requests)} requests waiting here`;
}

/** New ones come to the top; what is open stays. Pages and probes, which have no prompt, are left out. */
function showDecisions(newest) {
  after = newest[0]?.time ?? after;
  const nodes = newest.filter((one) => one.num_prompt_tokens || one.status !== 200).map(decision);
  decisions.unshift(...nodes);
  byId("decisions").prepend(...nodes);
  for (const node of decisions.splice(MAX_DECISIONS)) node.remove();
  byId("none").hidden = decisions.length > 0;
}

function decision(one) {
  const when = new Date(1000 * one.time).toLocaleTimeString();
  const outcome = one.status === 200 ? one.endpoints.join(", ") : `refused, ${one.status}: ${one.message}`;
  const node = make("details", { className: "operation" }, make("summary", {}, make("strong", {}, outcome),
    make("span", { className: "soft" }, ` ${when} · ${one.model || one.path} · ${one.request_id}`)));
  node.addEventListener("toggle", () => node.append(...account(one)), { once: true });
  return node;
}

function account(one) {
  const pairs = [["Path", one.path], ["Took", `${number(one.duration_ms, 2)} ms`],
    ["Prompt", `${number(one.num_prompt_tokens)} tokens`]];
  if (one.target_model !== one.model) pairs.push(["Served as", one.target_model]);
  for (const [producer, tokens] of Object.entries(one.cached_tokens)) {
    const held = Object.entries(tokens).map(([name, count]) => `${name} ${number(count)}`);
    pairs.push([`Cached, says ${producer}`, held.join(", ") || "nobody has any of it"]);
  }
  if (one.stale.length) pairs.push(["Load not known of", one.stale.join(", ")]);
  if (one.unreachable.length) pairs.push(["Refuse connections", one.unreachable.join(", ")]);
  return [make("dl", { className: "facts" }, ...facts(pairs)), ...one.profiles.flatMap(profile)];
}

function profile(one) {
  const removed = one.filters.filter((each) => each.removed.length).map((each) => `${each.name} removed ${each.removed.join(", ")}`);
  const names = Object.keys(one.totals).sort((a, b) => one.totals[b] - one.totals[a]);
  const heads = ["Worker", "Total", ...one.scorers.map((scorer) => `${scorer.name} × ${number(scorer.weight, 2)}`)];
  const rows = names.map((name) => make("tr", {}, make("th", { scope: "row" }, name, picked(one, name)),
    make("td", {}, number(one.totals[name], 3)), one.scorers.map((scorer) => cell(scorer, name))));
  return [make("h3", {}, `Profile ${one.name}: ${one.candidates.length} candidates`),
    make("p", { className: "soft" }, removed.join("; ") || "No filter removed anybody."),
    make("div", { className: "wide" }, make("table", {}, make("thead", {}, make("tr", {},
      heads.map((text) => make("th", { scope: "col" }, text)))), make("tbody", {}, rows)))];
}

const picked = (one, name) => (one.picked.includes(name) ? make("strong", {}, " picked") : null);

function cell(scorer, name) {
  const score = scorer.scores[name];
  if (!score) return make("td", {}, "–");
  const meter = make("meter", { max: 1, value: score.raw, "aria-label": `${scorer.name} of ${name}` });
  return make("td", {}, number(score.raw, 3), " ", meter);
}

document.addEventListener("visibilitychange", tick);
start(tick);
