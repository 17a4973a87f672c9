// The page at /docs: the OpenAPI document for people.

import { element } from './chart.js';
import { BASE, getJson } from './server.js';

/** Deepest objects whose fields are listed; deeper ones are named by their type. */
const MAX_DEPTH = 4;
/** Bounds from here on are those of a machine word. */
const WORD = 2 ** 31 - 1;

const byId = (id) => document.getElementById(id);
const code = (text) => element('code', { textContent: text });
const alternatives = (schema) => [...(schema?.anyOf ?? []), ...(schema?.oneOf ?? [])];

let api = {};

/** The target of a reference; any other schema itself. */
function resolved(schema) {
  return schema?.$ref ? schema.$ref.slice(2).split('/').reduce((value, name) => value?.[name], api) : schema;
}

/** Text with the parts between backquotes as code. */
function marked(text = '') {
  return text.split('`').map((part, at) => (at % 2 ? code(part) : part));
}

/** `, 0 to 2`, `, above 0 to 1`, `, 1 to 64 characters`; empty for a number that only its type bounds. */
function limits(schema) {
  const bound = (key) => (Math.abs(schema[key]) < WORD ? schema[key] : undefined);
  const range = (low, high, unit = '') => {
    if (low !== undefined) return high !== undefined ? `, ${low} to ${high}${unit}` : `, ${low}${unit} or more`;
    return high !== undefined ? `, at most ${high}${unit}` : '';
  };
  const above = bound('exclusiveMinimum');
  return range(bound('minimum') ?? (above !== undefined ? `above ${above}` : undefined), bound('maximum'))
    + range(bound('minLength'), bound('maxLength'), ' characters')
    + range(bound('minItems'), bound('maxItems'), ' items');
}

/** The type and its limits in a few words: `integer, 0 to 20`. The null that every optional field may be is left out. */
function kind(schema, depth = 0) {
  // A schema may hold itself.
  if (depth > MAX_DEPTH) return 'any';
  schema = resolved(schema) ?? {};
  // `true` allows everything.
  if (typeof schema !== 'object') return 'any';
  if ('const' in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.filter((value) => value !== null).map((value) => JSON.stringify(value)).join(' | ');
  const kinds = alternatives(schema).map((alternative) => kind(alternative, depth + 1)).filter((name) => name !== 'null');
  if (kinds.length) return [...new Set(kinds)].join(', or ');
  const types = [schema.type ?? []].flat();
  const names = types.length > 1 ? types.filter((name) => name !== 'null') : types;
  if (!names.length) return 'any';
  if (names.join() !== 'array') return names.join(' or ') + limits(schema);
  const items = kind(schema.items, depth + 1);
  return (items === 'any' ? 'array' : `array of (${items})`) + limits(schema);
}

/** A table of an object's fields, required ones first; null for a schema without fields. */
function fields(schema, depth) {
  const { properties = {}, required = [] } = resolved(schema) ?? {};
  const names = Object.keys(properties);
  if (!names.length) return null;
  const [first, rest] = [names.filter((name) => required.includes(name)), names.filter((name) => !required.includes(name))];
  return element('table', {}, ...[...first, ...rest].map((name) => {
    const of = properties[name];
    const about = of.description ? [element('br'), ...marked(of.description)] : [];
    return element('tr', {}, element('td', {}, code(name)), element(
      'td', {}, ...(required.includes(name) ? [element('b', { textContent: 'required' }), ' '] : []),
      element('span', { className: 'kind', textContent: kind(of) }), ...about, ...folded(of, depth),
    ));
  }));
}

/** The fields of the objects that a value may be or hold, folded. */
function folded(schema, depth = 0) {
  if (depth >= MAX_DEPTH) return [];
  schema = resolved(schema) ?? {};
  const table = fields(schema, depth + 1);
  if (table) return [element('details', {}, element('summary', { textContent: 'fields' }), table)];
  return [schema.items, ...alternatives(schema)].flatMap((inner) => folded(inner, depth + 1));
}

/** The command that asks this server, by the address that the browser knows it by. */
function curl(path, method, example) {
  const address = `${BASE}${path.slice(1)}`;
  if (!example) return `curl ${method === 'get' ? '' : `-X ${method.toUpperCase()} `}${address}`;
  const body = JSON.stringify(example, null, 2).replaceAll("'", "'\\''");
  return `curl ${address} -H 'content-type: application/json' -d '${body}'`;
}

function answer([status, { description, content }]) {
  const cell = element('td', {}, ...marked(description));
  if (status === '200') {
    const kinds = Object.keys(content).join(', ');
    cell.append(' ', element('span', { className: 'kind', textContent: kinds }), ...folded(content['application/json']?.schema));
  }
  return element('tr', {}, element('td', {}, code(status)), cell);
}

function section(path, method, operation) {
  const title = element('h2', {}, element('code', {}, element('span', { textContent: method.toUpperCase() }), ` ${path}`));
  const made = element('section', { id: operation.operationId, ariaLabel: title.textContent }, title, element('p', {}, ...marked(operation.summary)));
  const body = operation.requestBody?.content['application/json'];
  const example = element('pre', { textContent: curl(path, method, body?.example), tabIndex: 0, role: 'group', ariaLabel: `${title.textContent}: example` });
  made.append(element('h3', { textContent: 'Example' }), example);
  if (body) made.append(element('h3', { textContent: 'Request' }), fields(body.schema, 0));
  made.append(element('h3', { textContent: 'Answers' }), element('table', {}, ...Object.entries(operation.responses).map(answer)));
  return made;
}

function show() {
  byId('version').textContent = api.info.version;
  byId('about').append(...marked(api.info.description));
  for (const { name } of api.tags) {
    byId('routes').append(element('h2', { textContent: name }));
    for (const [path, item] of Object.entries(api.paths)) {
      const operations = Object.entries(item).filter(([, operation]) => operation.tags[0] === name);
      for (const [method, operation] of operations) {
        byId('routes').append(element('a', { href: `#${operation.operationId}` }, code(path)), '\n');
        byId('sections').append(section(path, method, operation));
      }
    }
  }
  // The section of the address is there only now.
  document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

try {
  api = await getJson('openapi.json');
  show();
} catch (error) {
  byId('about').textContent = `The document could not be read: ${error.message}.`;
}
