// A chat as a tree of turns: an edit or another try is a branch, and one path from the first turn to a leaf is read.

import { save } from "./store.js";

const TITLE = 60; // characters
const newId = () => crypto.getRandomValues(new Uint32Array(4)).join("-");

/** Unsaved until its first turn. */
export class Conversation {
  turns = new Map();
  isGone = false; // deleted: nothing of it is saved any more

  constructor(about = {}, turns = []) {
    this.about = { id: newId(), title: "", isNamed: false, made: Date.now(), changed: Date.now(), leaf: null, settings: null, ...about };
    for (const turn of turns) this.turns.set(turn.id, { ...turn, isDone: true });
    if (!this.turns.has(this.about.leaf)) this.about.leaf = null;
  }

  get isEmpty() {
    return this.turns.size === 0;
  }

  /** From the first turn to the leaf. */
  path() {
    const path = [];
    for (let turn = this.turns.get(this.about.leaf); turn; turn = this.turns.get(turn.parent)) path.unshift(turn);
    return path;
  }

  /** The branches at a turn's place, oldest first. */
  branches({ parent }) {
    return [...this.turns.values()].filter((one) => one.parent === parent).sort((a, b) => a.made - b.made);
  }

  /** A new turn below another one (null: at the beginning), which is then the leaf. */
  add(turn, parent) {
    const last = Math.max(0, ...[...this.turns.values()].map((one) => one.made));
    const added = { id: newId(), chat: this.about.id, parent, made: Math.max(Date.now(), last + 1), ...turn };
    this.turns.set(added.id, added);
    this.about.leaf = added.id;
    if (!this.about.isNamed && turn.role === "user" && parent === null) this.about.title = titleOf(turn);
    this.keep(added);
    return added;
  }

  /** Read the branch of a turn, down to its newest leaf. */
  choose(turn) {
    let leaf = turn;
    for (let next = turn; next; next = this.branches({ parent: leaf.id }).at(-1)) leaf = next;
    this.about.leaf = leaf.id;
    this.keep();
  }

  rename(title) {
    Object.assign(this.about, { title, isNamed: true });
    this.keep();
  }

  setSettings(settings) {
    this.about.settings = settings;
    if (!this.isEmpty) this.keep();
  }

  /** Save the chat, with turns that have changed. Failures are told to the page. */
  keep(...turns) {
    if (this.isGone) return;
    if (turns.length) this.about.changed = Date.now();
    save([this.about], turns).catch((error) => dispatchEvent(new CustomEvent("not-kept", { detail: error.message })));
    dispatchEvent(new CustomEvent("chat-changed", { detail: this }));
  }
}

function titleOf({ text, pictures = [], sounds = [] }) {
  const line = text.trim().split("\n")[0] || [...pictures, ...sounds][0]?.name || "";
  return line.length > TITLE ? `${line.slice(0, TITLE - 1)}…` : line;
}

/** Fresh ids for chats that come from a file, so that they never replace others. */
export function renewed(about, turns) {
  const ids = new Map(turns.map(({ id }) => [id, newId()]));
  const chat = newId();
  return [{ ...about, id: chat, leaf: ids.get(about.leaf) ?? null },
    turns.map((turn) => ({ ...turn, chat, id: ids.get(turn.id), parent: ids.get(turn.parent) ?? null }))];
}
