// SPDX-License-Identifier: Apache-2.0
// The playground: a chat and a text to continue.
import { get, post, settings, stream } from "./api.js";
import { hideTokens, listenToHeads, offerTokens } from "./attention.js";

const messages = [];
let running = null;  // the request on its way
let before = null;   // the text before the last continuation

function by(id) {
  return document.getElementById(id);
}

function say(text, isError = false) {
  by("status").textContent = text;
  by("status").className = isError ? "error" : "";
}

function show(name) {
  for (const section of ["chat", "completion"]) {
    by(section).hidden = section !== name;
    by(`show-${section}`).setAttribute("aria-pressed", String(section === name));
  }
  hideTokens();
  say("");
}

function addMessage(role, content) {
  const box = document.createElement("div");
  box.className = `message ${role}`;
  const who = document.createElement("span");
  who.className = "who";
  who.textContent = role;
  const text = document.createElement("span");
  text.textContent = content;
  box.append(who, text);
  by("messages").append(box);
  return text;
}

// Collects pieces of text and writes them once a frame. Each write makes the browser lay out the whole text, which
// for thousands of tokens a second would leave no time for the user's clicks.
function onceAFrame(write) {
  let held = "";
  let frame = 0;
  const flush = () => {
    cancelAnimationFrame(frame);
    frame = 0;
    if (held !== "") write(held);
    held = "";
  };
  const add = (piece) => {
    held += piece;
    frame ||= requestAnimationFrame(flush);
  };
  return { add, flush };
}

// Streams an answer and calls `write` with its text as it comes.
async function answer(path, body, write) {
  running = new AbortController();
  by("stop").hidden = false;
  hideTokens();
  say("…");
  const begin = performance.now();
  const text = onceAFrame(write);
  let tokens = 0;
  let last = null;
  try {
    await stream(path, { ...settings(), ...body }, running.signal, (choice) => {
      text.add(choice.text ?? choice.delta.content ?? "");
      tokens += 1;
      last = choice;
    });
    const seconds = (performance.now() - begin) / 1000;
    say(`${last.token_ids.length} tokens in ${seconds.toFixed(2)} s, ended by ${last.finish_reason}`);
    const ids = [...last.prompt_token_ids, ...last.token_ids];
    const { token_strs: names } = await post("/detokenize", { tokens: ids });
    offerTokens(ids, names);
  } catch (error) {
    if (error.name === "AbortError") say(`stopped after ${tokens} pieces`);
    else say(error.message, true);
  } finally {
    text.flush();
    running = null;
    by("stop").hidden = true;
  }
}

by("show-chat").addEventListener("click", () => show("chat"));
by("show-completion").addEventListener("click", () => show("completion"));
by("stop").addEventListener("click", () => running?.abort());
by("chat-reset").addEventListener("click", () => {
  messages.length = 0;
  by("messages").replaceChildren();
  hideTokens();
  say("");
});
by("chat-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const content = by("chat-text").value;
  if (running || content.trim() === "") return;
  by("chat-text").value = "";
  messages.push({ role: "user", content });
  addMessage("user", content);
  const reply = addMessage("assistant", "");
  await answer("/v1/chat/completions", { messages }, (piece) => reply.append(piece));
  if (reply.textContent === "") reply.parentElement.remove();
  else messages.push({ role: "assistant", content: reply.textContent });
});
by("completion-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const box = by("completion-text");
  if (running || box.value === "") return;
  before = box.value;
  box.readOnly = true;
  await answer("/v1/completions", { prompt: before }, (piece) => {
    box.value += piece;
    box.scrollTop = box.scrollHeight;
  });
  box.readOnly = false;
  by("completion-undo").disabled = false;
});
by("completion-undo").addEventListener("click", () => {
  by("completion-text").value = before;
  by("completion-undo").disabled = true;
  hideTokens();
});
for (const [box, form] of [["chat-text", "chat-form"], ["completion-text", "completion-form"]]) {
  by(box).addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) by(form).requestSubmit();
  });
}
listenToHeads();
get("/v1/models").then(
  (list) => {
    by("model").textContent = list.data[0].id;
    if (list.data[0].chat === false) show("completion");
  },
  (error) => say(error.message, true),
);
