// The camera: one picture, many while the button is held, or live bars that follow it.
import { frame } from "./pictures.js";
import { words } from "./words.js";

const $ = (id) => document.getElementById(id);
const EVERY = 180; // ms between pictures while the button is held
let stream = null, holding = null, live = false, taken = 0;

// `receive(file)` gets each picture; `look(file)` returns nodes that show what it is, for live mode.
export async function openCamera({ side, receive, look, teaching }) {
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch {
    return false;
  }
  taken = 0;
  $("video").srcObject = stream;
  $("camera-count").textContent = "";
  $("camera-bars").replaceChildren();
  $("camera-thumbs").replaceChildren();
  $("shoot").textContent = teaching ? words.camera.hold : words.camera.take;
  $("live").hidden = teaching;
  $("live").setAttribute("aria-pressed", "false");
  const take = async () => {
    if (!$("video").videoWidth) return;
    const file = await frame($("video"), side());
    taken += 1;
    $("camera-count").textContent = words.camera.taken(taken);
    if (teaching) {
      const image = Object.assign(document.createElement("img"), { src: URL.createObjectURL(file), alt: words.aPicture(taken) });
      $("camera-thumbs").prepend(image);
      while ($("camera-thumbs").children.length > 8) $("camera-thumbs").lastChild.remove();
    }
    receive(file);
    if (!teaching) $("camera").close();
  };
  const begin = (event) => {
    if (event.type === "keydown" && (event.repeat || ![" ", "Enter"].includes(event.key))) return;
    event.preventDefault();
    if (event.pointerId !== undefined) $("shoot").setPointerCapture(event.pointerId); // held, wherever the finger slides
    take();
    if (teaching && holding === null) holding = setInterval(take, EVERY);
  };
  $("shoot").onpointerdown = begin;
  $("shoot").onkeydown = begin;
  for (const kind of ["onpointerup", "onpointercancel", "onkeyup", "onblur"]) $("shoot")[kind] = release;
  $("live").onclick = () => (live ? endLive() : follow(side, look));
  $("camera").showModal();
  return true;
}

function release() {
  clearInterval(holding);
  holding = null;
}

async function follow(side, look) {
  live = true;
  $("live").setAttribute("aria-pressed", "true");
  while (live && stream) {
    const begun = performance.now();
    if ($("video").videoWidth) {
      try {
        const nodes = await look(await frame($("video"), side()));
        if (live) $("camera-bars").replaceChildren(...nodes);
      } catch (error) {
        $("camera-bars").textContent = error.message;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, Math.max(20, 150 - (performance.now() - begun))));
  }
}

function endLive() {
  live = false;
  $("live").setAttribute("aria-pressed", "false");
}

export function closeCamera() {
  release();
  endLive();
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
}
