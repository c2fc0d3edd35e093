// SPDX-License-Identifier: Apache-2.0
// Requests to the server that the page came from.

function field(id) {
  return document.getElementById(id);
}

function headers() {
  const key = field("key").value;
  const all = { "Content-Type": "application/json" };
  if (key) all.Authorization = `Bearer ${key}`;
  return all;
}

// Returns the settings that the user chose, as fields of a request.
export function settings() {
  const chosen = {
    temperature: Number(field("temperature").value),
    top_p: Number(field("top-p").value),
    max_tokens: Number(field("max-tokens").value),
  };
  if (field("seed").value !== "") chosen.seed = Number(field("seed").value);
  return chosen;
}

async function errorOf(answer) {
  const text = await answer.text();
  try {
    return new Error(JSON.parse(text).error.message);
  } catch {
    return new Error(`The server answered with status ${answer.status}.`);
  }
}

export async function get(path) {
  const answer = await fetch(path, { headers: headers() });
  if (!answer.ok) throw await errorOf(answer);
  return answer.json();
}

export async function post(path, body) {
  const answer = await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(body) });
  if (!answer.ok) throw await errorOf(answer);
  return answer.json();
}

// Posts a request with a stream and calls `take` with the first choice of each event.
export async function stream(path, body, signal, take) {
  const answer = await fetch(path, {
    method: "POST", headers: headers(), signal, body: JSON.stringify({ ...body, stream: true, return_token_ids: true }),
  });
  if (!answer.ok) throw await errorOf(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      const data = event.slice("data: ".length);
      if (data === "[DONE]") continue;
      const json = JSON.parse(data);
      if (json.error) throw new Error(json.error.message);
      if (json.choices.length > 0) take(json.choices[0]);
    }
  }
}
