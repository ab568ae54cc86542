// Pictures in the browser: made as small as the network needs before they are sent, and sent a few at a time.
const AT_ONCE = 16; // pictures in a request
const SPARE = 2; // times the network's side: the service makes the last, exact step

// The picture with a short side of SPARE times what the network sees; the file as it is where the browser cannot read it.
export async function shrink(file, side) {
  const target = Math.max(96, SPARE * side);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    return file; // the service says what is wrong with it
  }
  const scale = target / Math.min(bitmap.width, bitmap.height);
  if (scale >= 1 && file.size < 1 << 20) return file;
  const small = await drawn(bitmap, Math.min(1, scale), file.name || "picture.jpg");
  bitmap.close();
  return small;
}

// The present frame of a video as a small picture.
export const frame = (video, side) =>
  drawn(video, Math.min(1, Math.max(96, SPARE * side) / Math.min(video.videoWidth, video.videoHeight)), "camera.jpg");

async function drawn(source, scale, name) {
  const width = Math.max(1, Math.round((source.videoWidth ?? source.width) * scale));
  const height = Math.max(1, Math.round((source.videoHeight ?? source.height) * scale));
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(source, 0, 0, width, height);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.95));
  return new File([blob], name, { type: "image/jpeg" });
}

// Groups of at most AT_ONCE pictures that together stay below the service's limits.
export function* groups(files, limits) {
  let group = [], bytes = 0;
  for (const file of files) {
    if (group.length && (group.length >= Math.min(AT_ONCE, limits.images) || bytes + file.size > limits.body_bytes - 65536)) {
      yield group;
      [group, bytes] = [[], 0];
    }
    group.push(file);
    bytes += file.size;
  }
  if (group.length) yield group;
}

export function form(files, fields = {}) {
  const body = new FormData();
  for (const [name, value] of Object.entries(fields)) body.append(name, value);
  for (const file of files) body.append("images", file);
  return body;
}
