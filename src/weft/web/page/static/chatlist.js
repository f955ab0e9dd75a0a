// The chats of this browser: found, opened, renamed, deleted, written to a file and read from one.

import * as chat from "./chat.js";
import { Conversation } from "./conversation.js";
import { button, byId, make } from "./dom.js";
import { exported, imported } from "./share.js";
import * as store from "./store.js";

const MAX_IMPORT_BYTES = 200 * 2 ** 20;
const OPEN = "weft.chat"; // the chat of this tab

let chats = [];
let found = null; // ids of the chats that are searched for; null: all

/** Read the list, and open the chat that this tab had. */
export async function setUp() {
  byId("clear").addEventListener("click", () => select(new Conversation()));
  byId("to-chats").addEventListener("click", () => showList(!document.body.classList.contains("with-chats")));
  byId("find-chats").addEventListener("input", search);
  byId("export-chats").addEventListener("click", () => write(chats, "weft-chats.json"));
  byId("import-chats").addEventListener("click", () => byId("chats-file").click());
  byId("chats-file").addEventListener("change", read);
  byId("chats").addEventListener("keydown", (event) => {
    if (event.key === "Escape") showList(false);
  });
  addEventListener("chat-changed", ({ detail }) => note(detail));
  chats = await store.allChats();
  if (!(await store.isKept())) byId("chats-note").textContent = "This browser keeps no chats: they are lost when the page closes.";
  const last = chats.find(({ id }) => id === sessionStorage.getItem(OPEN));
  if (last && chat.current().isEmpty && !chat.isDrafting()) await openChat(last);
  else select(chat.current());
}

function showList(isShown) {
  document.body.classList.toggle("with-chats", isShown);
  byId("to-chats").setAttribute("aria-expanded", String(isShown));
  if (isShown) byId("find-chats").focus();
}

const isOpen = ({ id }) => id === chat.current().about.id;

function select(conversation) {
  sessionStorage.setItem(OPEN, conversation.about.id);
  showList(false);
  chat.open(conversation);
  show();
}

async function openChat(about) {
  if (isOpen(about) && !chat.current().isEmpty) showList(false);
  else select(chat.answering(about.id) ?? new Conversation(about, await store.turnsOf(about.id)));
}

/** A chat was changed: it is the first of the list. */
function note({ about }) {
  const isFirst = chats[0]?.id === about.id;
  chats = [about, ...chats.filter(({ id }) => id !== about.id)];
  if (!isFirst || byId("chat-title").textContent !== about.title) show();
}

function show() {
  const shown = found === null ? chats : chats.filter(({ id }) => found.has(id));
  byId("chat-list").replaceChildren(...shown.map(row));
  byId("chats-empty").hidden = shown.length > 0;
  byId("chats-empty").textContent = found === null ? "No chats yet." : "No chat says this.";
  byId("chat-title").textContent = chat.current().about.title || "New chat";
}

function row(about) {
  const title = about.title || "Without a title";
  const more = make("details", { className: "more" }, make("summary", { "aria-label": `More of ${title}` }, "⋯"),
    make("div", { className: "row" }, button("Rename", () => rename(about)), button("Export", () => write([about], "weft-chat.json")),
      button("Delete", () => remove(about))));
  return make("li", {}, make("button", { type: "button", className: "chat-name", "aria-current": isOpen(about) ? "true" : null,
    title: new Date(about.changed).toLocaleString(), onclick: () => openChat(about) }, title), more);
}

function rename(about) {
  const field = make("input", { type: "text", value: about.title, maxLength: 200, "aria-label": "Title" });
  const item = byId("chat-list").children[[...byId("chat-list").children].findIndex((one) => one.querySelector("[open]"))];
  const done = (isTaken) => {
    if (!field.isConnected) return;
    if (isTaken && field.value.trim()) {
      Object.assign(about, { title: field.value.trim(), isNamed: true });
      if (isOpen(about)) chat.current().rename(about.title);
      else store.save([about], []);
    }
    show();
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape" || event.key === "Enter") {
      event.stopPropagation();
      done(event.key === "Enter");
    }
  });
  field.addEventListener("blur", () => done(true));
  item.replaceChildren(field);
  field.select();
}

/** The second click deletes. */
function remove(about) {
  const open = byId("chat-list").querySelector("details[open] .row");
  open.replaceChildren(make("span", {}, "Delete this chat?"), button("Delete it", async () => {
    chats = chats.filter(({ id }) => id !== about.id);
    chat.forget(about.id);
    if (isOpen(about)) select(new Conversation());
    else show();
    await store.remove(about.id);
  }, { className: "small danger" }), button("Keep it", show));
  open.querySelector("button").focus();
}

async function search() {
  const text = byId("find-chats").value.trim().toLowerCase();
  found = null;
  if (text) {
    const titles = chats.filter(({ title }) => title.toLowerCase().includes(text)).map(({ id }) => id);
    const said = await store.mentioning(text);
    if (text !== byId("find-chats").value.trim().toLowerCase()) return; // it was typed on
    found = new Set([...titles, ...said]);
  }
  show();
}

async function write(some, name) {
  const whole = await Promise.all(some.map(async (about) =>
    ({ about, turns: (isOpen(about) ? [...chat.current().turns.values()] : await store.turnsOf(about.id)).sort((a, b) => a.made - b.made) })));
  const address = URL.createObjectURL(new Blob([exported(whole)], { type: "application/json" }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

async function read() {
  const field = byId("chats-file");
  const [file] = field.files;
  field.value = "";
  if (!file) return;
  try {
    if (file.size > MAX_IMPORT_BYTES) throw new Error("The file is too large.");
    const pairs = imported(await file.text());
    await store.save(pairs.map(([about]) => about), pairs.flatMap(([, turns]) => turns));
    chats = await store.allChats();
    byId("chats-note").textContent = pairs.length === 1 ? "1 chat was imported." : `${pairs.length} chats were imported.`;
  } catch (error) {
    byId("chats-note").textContent = error.message;
  }
  show();
}
