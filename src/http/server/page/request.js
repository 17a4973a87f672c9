// The fields of the playground's request, as the form has them.

const byId = (id) => document.getElementById(id);
export const pretty = (value) => JSON.stringify(value, null, 2);

const EXAMPLE_TOOLS = [
  {
    type: 'function',
    function: {
      name: 'find_restaurant',
      description: 'Find a restaurant.',
      parameters: {
        type: 'object',
        properties: { city: { type: 'string' }, cuisine: { type: 'string', enum: ['Italian', 'Greek', 'Thai'] } },
        required: ['city', 'cuisine'],
      },
    },
  },
];
const EXAMPLE_SCHEMA = {
  type: 'object',
  properties: { name: { type: 'string' }, age: { type: 'integer' } },
  required: ['name', 'age'],
  additionalProperties: false,
};
const EXAMPLE_MORE = { logprobs: true, top_logprobs: 2 };

/** Inputs of numbers, by the names of their fields. */
const NUMBERS = [
  'temperature', 'max_tokens', 'top_p', 'top_k', 'min_p', 'frequency_penalty', 'presence_penalty', 'repetition_penalty', 'seed',
];

/** The JSON of an editor, if its box is ticked; a mistake is shown below the editor and thrown. */
function edited(name, check) {
  const box = byId(`use-${name}`);
  const editor = byId(name);
  const error = byId(`${name}-error`);
  error.textContent = '';
  editor.removeAttribute('aria-invalid');
  if (!box.checked) return undefined;
  try {
    const value = JSON.parse(editor.value);
    if (!check(value)) throw new Error(name === 'tools' ? 'a JSON array is expected' : 'a JSON object is expected');
    return value;
  } catch (problem) {
    error.textContent = problem.message;
    editor.setAttribute('aria-invalid', 'true');
    editor.focus();
    throw problem;
  }
}

/** A number as it was typed; what is no number is sent as text, and the server says what is wrong with it. */
function typed(field) {
  const text = byId(field.replaceAll('_', '-')).value.trim();
  if (text === '') return undefined;
  return Number.isFinite(Number(text)) ? Number(text) : text;
}

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

/** The body that sends these messages; throws where an editor holds no JSON. */
export function requestBody(model, messages) {
  const tools = edited('tools', Array.isArray);
  const schema = edited('schema', isObject);
  const more = edited('more', isObject);
  const system = byId('system').value;
  const thinking = byId('thinking').value;
  const stop = byId('stop-sequences').value.split('\n').filter(Boolean);
  return {
    model,
    messages: [...(system ? [{ role: 'system', content: system }] : []), ...messages],
    ...Object.fromEntries(NUMBERS.map((field) => [field, typed(field)])),
    stop: stop.length ? stop : undefined,
    chat_template_kwargs: thinking ? { thinking: thinking === 'on' } : undefined,
    tools,
    tool_choice: (tools && byId('tool-choice').value) || undefined,
    response_format: schema && { type: 'json_schema', json_schema: { name: 'reply', schema } },
    ...more,
    stream: true,
    stream_options: { include_usage: true },
  };
}

export function setUpRequest() {
  byId('tools').value = pretty(EXAMPLE_TOOLS);
  byId('schema').value = pretty(EXAMPLE_SCHEMA);
  byId('more').value = pretty(EXAMPLE_MORE);
  for (const name of ['tools', 'schema', 'more']) {
    const show = () => (byId(`${name}-editor`).hidden = !byId(`use-${name}`).checked);
    byId(`use-${name}`).addEventListener('change', show);
    show();
    byId(name).addEventListener('input', () => {
      byId(`${name}-error`).textContent = '';
      byId(name).removeAttribute('aria-invalid');
    });
  }
  byId('options').addEventListener('submit', (event) => event.preventDefault());
  // On a narrow screen the conversation comes first.
  byId('options-fold').open = !matchMedia('(max-width: 56rem)').matches;
}
