//! The family's chat formats, as one template and the differences per release.
//!
//! Written from the behaviour of the released templates (K2-Instruct, K2-Thinking, K2.5, K2.6,
//! K2.7-Code). A checkpoint's own `chat_template.jinja` takes precedence.

use minijinja::value::Value;

use super::family::Family;

/// Differences between releases.
struct Format {
    /// Whether a conversation without a system message in front gets the default one.
    default_system: bool,
    /// A line feed follows the default system turn.
    default_system_newline: bool,
    /// Tools may be declared in TypeScript (variable `tools_ts_str`); JSON otherwise.
    typescript: bool,
    /// Keys of declared tools are sorted.
    sort_tools: bool,
    /// Assistant turns carry a think part.
    think: bool,
    /// The prompt opens the reasoning.
    open_think: bool,
    /// `thinking=false` closes the reasoning at once.
    instant: bool,
    /// `preserve_thinking=true` keeps the reasoning of earlier turns.
    preserve_option: bool,
    /// The reasoning of earlier turns always stays.
    preserve_always: bool,
    /// Opens an image group; not a token in the text-only releases.
    media_begin: &'static str,
}

impl Format {
    fn of(family: Family) -> Self {
        let k25 = Self {
            default_system: false,
            default_system_newline: false,
            typescript: true,
            sort_tools: true,
            think: true,
            open_think: true,
            instant: true,
            preserve_option: false,
            preserve_always: false,
            media_begin: "<|media_begin|>",
        };
        let k2_thinking = Self {
            default_system: true,
            typescript: false,
            open_think: false,
            instant: false,
            media_begin: "<|media_start|>",
            ..k25
        };
        match family {
            Family::K2Instruct => {
                Self { default_system_newline: true, sort_tools: false, think: false, ..k2_thinking }
            }
            Family::K2Thinking => k2_thinking,
            Family::K25 => k25,
            Family::K26 => Self { preserve_option: true, ..k25 },
            Family::K27Code => Self { instant: false, preserve_always: true, ..k25 },
        }
    }
}

/// Whether a family's declared tools are sorted, and whether they may stand in TypeScript.
pub(super) fn tool_form(family: Family) -> (bool, bool) {
    let format = Format::of(family);
    (format.sort_tools, format.typescript)
}

/// Whether a family's turns have a think part.
pub(super) fn thinks(family: Family) -> bool {
    Format::of(family).think
}

/// The template variable `format` of a family.
pub(super) fn format_variable(family: Family) -> Value {
    let format = Format::of(family);
    Value::from_pairs([
        ("default_system", Value::from(format.default_system)),
        ("default_system_newline", Value::from(format.default_system_newline)),
        ("typescript", Value::from(format.typescript)),
        ("sort_tools", Value::from(format.sort_tools)),
        ("think", Value::from(format.think)),
        ("open_think", Value::from(format.open_think)),
        ("instant", Value::from(format.instant)),
        ("preserve_option", Value::from(format.preserve_option)),
        ("preserve_always", Value::from(format.preserve_always)),
        ("media_begin", Value::from(format.media_begin)),
    ])
}

/// The template of one family, which needs no variables beyond the usual ones.
pub(super) fn source(family: Family) -> String {
    let format = serde_json::to_string(&format_variable(family)).unwrap_or_default();
    format!("{{%- set format = {format} -%}}{TEMPLATE}")
}

/// The family's template; reads `format` besides the usual variables.
pub(super) const TEMPLATE: &str = r##"
{%- macro body(message) -%}
  {%- set content = message.get('content') -%}
  {%- if content is string -%}
    {{- content -}}
  {%- elif content is not none -%}
    {%- for part in content -%}
      {%- if part is string -%}
        {{- part -}}
      {%- elif part.type in ['image', 'image_url'] -%}
        {{- format.media_begin + 'image<|media_content|><|media_pad|><|media_end|>\n' -}}
      {%- elif part.type in ['video', 'video_url'] -%}
        {{- '<|kimi_k25_video_placeholder|>\n' -}}
      {%- else -%}
        {{- part.text -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- macro calls(message) -%}
  {{- '<|tool_calls_section_begin|>' -}}
  {%- for call in message.tool_calls -%}
    {{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' -}}
    {%- set arguments = call.function.arguments -%}
    {{- arguments if arguments is string else arguments | tojson -}}
    {{- '<|tool_call_end|>' -}}
  {%- endfor -%}
  {{- '<|tool_calls_section_end|>' -}}
{%- endmacro -%}
{#- Everything up to the last final answer is history, whose reasoning is left out. -#}
{%- set history = namespace(last=-1) -%}
{%- if not (format.preserve_always or (format.preserve_option and preserve_thinking is defined and preserve_thinking is true)) -%}
  {%- for message in messages -%}
    {%- if message.role == 'assistant' and not message.get('tool_calls') -%}
      {%- set history.last = loop.index0 -%}
    {%- endif -%}
  {%- endfor -%}
{%- endif -%}
{%- set instant = format.instant and thinking is defined and thinking is false -%}
{%- if tools -%}
  {{- '<|im_system|>tool_declare<|im_middle|>' -}}
  {%- if format.typescript and tools_ts_str -%}
    {{- tools_ts_str -}}
  {%- else -%}
    {{- tools | tojson(separators=(',', ':'), sort_keys=format.sort_tools) -}}
  {%- endif -%}
  {{- '<|im_end|>' -}}
{%- endif -%}
{%- if format.default_system and not (messages and messages[0].role == 'system') -%}
  {{- '<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>' -}}
  {{- '\n' if format.default_system_newline else '' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}
    {{- '<|im_user|>' -}}
  {%- elif message.role == 'assistant' -%}
    {{- '<|im_assistant|>' -}}
  {%- else -%}
    {{- '<|im_system|>' -}}
  {%- endif -%}
  {{- message.get('name') or message.role -}}
  {{- '<|im_middle|>' -}}
  {%- if message.role == 'assistant' -%}
    {%- if format.think -%}
      {%- if loop.index0 <= history.last or instant -%}
        {{- '<think></think>' -}}
      {%- else -%}
        {{- '<think>' -}}{{- message.get('reasoning_content') or '' -}}{{- '</think>' -}}
      {%- endif -%}
    {%- endif -%}
    {{- body(message) -}}
    {%- if message.get('tool_calls') -%}
      {{- calls(message) -}}
    {%- endif -%}
  {%- elif message.role == 'tool' -%}
    {{- '## Return of ' -}}{{- message.get('tool_call_id') or '' -}}{{- '\n' -}}
    {{- body(message) -}}
  {%- else -%}
    {{- body(message) -}}
  {%- endif -%}
  {{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_assistant|>assistant<|im_middle|>' -}}
  {%- if format.open_think -%}
    {{- '<think></think>' if instant else '<think>' -}}
  {%- endif -%}
{%- endif -%}
"##;
