// What the next message takes along: images, and files of text.

import { element } from './chart.js';

const MAX_FILES = 16;
const MAX_IMAGE_BYTES = 20_000_000;
const MAX_TEXT_BYTES = 500_000;

const byId = (id) => document.getElementById(id);

/** {name, url} of an image, or {name, text}. */
let attached = [];
let note = () => {};
let seesImages = () => false;

export const attachments = () => attached;

export function setAttachments(next) {
  attached = next;
  byId('thumbnails').replaceChildren(
    ...attached.map((file) => {
      const remove = element('button', { type: 'button', textContent: '×', ariaLabel: `Remove ${file.name}` });
      remove.addEventListener('click', () => {
        setAttachments(attached.filter((other) => other !== file));
        byId('message').focus();
      });
      return element('li', {}, file.url ? element('img', { src: file.url, alt: file.name }) : element('span', { className: 'file', textContent: file.name }), remove);
    }),
  );
}

/** The content of a message: the files before what was typed. */
export function contentOf(text, files) {
  // A fence longer than any within the file.
  const fence = (body) => '`'.repeat(Math.max(3, ...(body.match(/`{3,}/g) ?? []).map((run) => run.length + 1)));
  const texts = files.filter((file) => file.text !== undefined).map((file) => {
    const mark = fence(file.text);
    return `File ${file.name}:\n${mark}\n${file.text}\n${mark}`;
  });
  const whole = [...texts, ...(text ? [text] : [])].join('\n\n');
  const images = files.filter((file) => file.url);
  if (images.length === 0) return whole;
  return [...images.map(({ url }) => ({ type: 'image_url', image_url: { url } })), ...(whole ? [{ type: 'text', text: whole }] : [])];
}

async function attach(files) {
  note('');
  for (const file of files) {
    const name = file.name || 'pasted image';
    const refuse = (why) => note(`${name} ${why}; it was not attached.`);
    if (attached.length >= MAX_FILES) return note(`At most ${MAX_FILES} files per message.`);
    if (file.type.startsWith('image/')) {
      if (!seesImages()) refuse('is an image, and this model sees none');
      else if (file.size > MAX_IMAGE_BYTES) refuse(`has more than ${MAX_IMAGE_BYTES / 1e6} MB`);
      else setAttachments([...attached, { name, url: await dataUrl(file) }]);
      continue;
    }
    if (file.size > MAX_TEXT_BYTES) refuse(`has more than ${MAX_TEXT_BYTES / 1000} kB`);
    else {
      const text = await textOf(file);
      if (text === null) refuse('is neither an image nor text');
      else setAttachments([...attached, { name, text }]);
    }
  }
}

/** The text of a file in UTF-8; `null` for anything else. */
async function textOf(file) {
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
    return text.includes('\0') ? null : text.trimEnd();
  } catch {
    return null;
  }
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

/** `say` shows a sentence below the composer; `canSee` tells whether the model sees images. */
export function setUpAttachments(say, canSee) {
  note = say;
  seesImages = canSee;
  const view = byId('view-playground');
  byId('message').addEventListener('paste', (event) => {
    if (event.clipboardData.files.length === 0) return;
    event.preventDefault();
    attach([...event.clipboardData.files]);
  });
  const hasFiles = (event) => event.dataTransfer.types.includes('Files');
  const mark = (isOver) => byId('composer').classList.toggle('over', isOver);
  view.addEventListener('dragover', (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    mark(true);
  });
  view.addEventListener('dragleave', () => mark(false));
  view.addEventListener('drop', (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    mark(false);
    attach([...event.dataTransfer.files]);
  });
  byId('files').addEventListener('change', async (event) => {
    await attach([...event.target.files]);
    event.target.value = '';
    byId('message').focus();
  });
}
