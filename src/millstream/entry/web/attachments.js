// Files that go with a message: text is put into it; pictures only where the served model takes them, as /v1/capabilities says.

import { h, replace } from "./dom.js";

const MAX_TEXT_BYTES = 1_000_000;
const MAX_PICTURE_BYTES = 8_000_000;

/** The control and what was chosen. `modalities()` are those that the model takes. */
export function attachments(modalities, report) {
  let chosen = [];
  const list = h("ul", { class: "attached", "aria-label": "Attached files" });
  const input = h("input", { type: "file", multiple: true, id: "attach", class: "unseen", tabindex: "-1" });
  const button = h("button", { type: "button", id: "attach-button", onclick: () => input.click() }, "Attach");

  const show = () => replace(list, chosen.map((each) =>
    h("li", {}, each.name, " ", h("button", { type: "button", "aria-label": `Remove ${each.name}`, onclick: () => { chosen = chosen.filter((other) => other !== each); show(); button.focus(); } }, "×"))));

  input.addEventListener("change", async () => {
    for (const file of [...input.files]) {
      try {
        chosen.push(await read(file, modalities()));
      } catch (error) {
        report(error.message);
      }
    }
    input.value = "";
    show();
  });

  return {
    element: h("div", { class: "attachments" }, button, input, list),
    /** What a message's content is with the files, which are then let go. */
    content(text) {
      const texts = chosen.filter((each) => each.text !== undefined).map((each) => `${each.name}:\n\`\`\`\n${each.text}\n\`\`\`\n\n`);
      const pictures = chosen.filter((each) => each.url !== undefined);
      const whole = texts.join("") + text;
      chosen = [];
      show();
      if (!pictures.length) return whole;
      return [{ type: "text", text: whole }, ...pictures.map((each) => ({ type: "image_url", image_url: { url: each.url } }))];
    },
    describe() {
      const takes = modalities();
      button.title = takes.includes("image") ? "Text files and pictures" : `Text files. This model takes no pictures or sound: its input is ${takes.join(", ")}.`;
    },
  };
}

async function read(file, modalities) {
  const name = file.name;
  if (file.type.startsWith("image/")) {
    if (!modalities.includes("image")) throw new Error(`${name} was not attached: this model takes no pictures, only ${modalities.join(", ")}.`);
    if (file.size > MAX_PICTURE_BYTES) throw new Error(`${name} was not attached: it is larger than 8 MB.`);
    return { name, url: await asUrl(file) };
  }
  if (file.size > MAX_TEXT_BYTES) throw new Error(`${name} was not attached: it is larger than 1 MB.`);
  try {
    return { name, text: new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()) };
  } catch {
    throw new Error(`${name} was not attached: it is no text, and this model takes ${modalities.join(", ")}.`);
  }
}

const asUrl = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
  reader.readAsDataURL(file);
});
