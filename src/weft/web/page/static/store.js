// Chats in this browser's IndexedDB. Where a browser keeps nothing, they last as long as the page is open.

const NAME = `weft ${location.pathname}`; // several servers may stand behind one origin

let opened = null;

function database() {
  opened ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open(NAME, 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore("chats", { keyPath: "id" });
        request.result.createObjectStore("turns", { keyPath: "id" }).createIndex("chat", "chat");
      };
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return opened;
}

/** True if this browser keeps chats. */
export const isKept = async () => (await database()) !== null;

/** Run some requests in a transaction; the result is that of the last one. */
async function within(stores, mode, act) {
  const db = await database();
  if (db === null) return undefined;
  return new Promise((resolve, reject) => {
    const transaction = db.transaction(stores, mode);
    const request = act(transaction);
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onabort = transaction.onerror = () =>
      reject(new Error("This browser has no room for the chat. Delete some chats, or export and delete them."));
  });
}

/** All chats, the one that changed last first. */
export async function allChats() {
  const chats = (await within(["chats"], "readonly", (t) => t.objectStore("chats").getAll())) ?? [];
  return chats.sort((a, b) => b.changed - a.changed);
}

export const turnsOf = async (chat) =>
  (await within(["turns"], "readonly", (t) => t.objectStore("turns").index("chat").getAll(chat))) ?? [];

export const save = (chats, turns) => within(["chats", "turns"], "readwrite", (t) => {
  for (const turn of turns) t.objectStore("turns").put(turn);
  for (const chat of chats) t.objectStore("chats").put(chat);
});

export const remove = (chat) => within(["chats", "turns"], "readwrite", (t) => {
  t.objectStore("chats").delete(chat);
  const turns = t.objectStore("turns");
  turns.index("chat").getAllKeys(chat).onsuccess = ({ target }) => target.result.forEach((id) => turns.delete(id));
});

/** The ids of the chats in which a text is said, in lower case. */
export async function mentioning(text) {
  const found = new Set();
  await within(["turns"], "readonly", (t) => {
    t.objectStore("turns").openCursor().onsuccess = ({ target: { result: cursor } }) => {
      if (!cursor) return;
      const { chat, text: said = "", answers = [] } = cursor.value;
      if ([said, ...answers.map((one) => one.content)].some((one) => one.toLowerCase().includes(text))) found.add(chat);
      cursor.continue();
    };
  });
  return found;
}
