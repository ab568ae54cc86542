// What the page asks of the service. Requests go to this service and nowhere else.
import { words } from "./words.js";

const tokenField = () => document.getElementById("token");

function headers(extra = {}) {
  const token = tokenField()?.value.trim();
  return token ? { ...extra, Authorization: `Bearer ${token}` } : extra;
}

async function send(path, options) {
  try {
    return await fetch(path, options);
  } catch {
    throw new Error(words.noAnswer);
  }
}

async function failure(response) {
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) {
    document.getElementById("token-form").hidden = false;
    tokenField().focus();
    return new Error(words.token.wrong);
  }
  return new Error(typeof answer.detail === "string" ? answer.detail : words.status(response.status));
}

export async function ask(path, options = {}) {
  const response = await send(path, { ...options, headers: headers(options.headers) });
  if (!response.ok) throw await failure(response);
  return response.json();
}

// A lesson that got no answer is sent once more under the same key, which the service counts once.
export async function askOnce(path, options) {
  const keyed = { ...options, headers: { ...options.headers, "Idempotency-Key": crypto.randomUUID() } };
  try {
    return await ask(path, keyed);
  } catch (error) {
    if (error.message !== words.noAnswer) throw error;
    return ask(path, keyed);
  }
}

export async function download(path) {
  const response = await send(path, { headers: headers() });
  if (!response.ok) throw await failure(response);
  const said = response.headers.get("content-disposition") ?? "";
  const full = /filename\*=UTF-8''([^;]+)/.exec(said)?.[1];
  const name = full ? decodeURIComponent(full) : (/filename="([^"]+)"/.exec(said)?.[1] ?? "model.nocl");
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(await response.blob()), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
