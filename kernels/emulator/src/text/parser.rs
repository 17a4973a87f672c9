//! The parser: one pass over the tokens, labels resolved at the end of each function.

use std::collections::HashMap;

use super::module::{
    Directives, Function, Immediate, Instruction, Module, Operand, Parameter, Register, RegisterKind, Space,
    SymbolRef, Variable,
};
use super::token::{Token, tokenize};

/// Text that is not PTX as this parser knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// Line, from 1.
    pub line: u32,
    /// Reason.
    pub text: String,
}

impl ParseError {
    pub(super) fn new(line: u32, text: impl Into<String>) -> Self {
        Self { line, text: text.into() }
    }
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

impl std::error::Error for ParseError {}

/// Parses the text of a module.
pub fn parse(text: &str) -> Result<Module, ParseError> {
    let tokens = tokenize(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0, module: Module::default(), bytes: 0 };
    parser.module()?;
    Ok(parser.module)
}

/// Most registers of one declaration or function, against text that asks for all memory.
const MAX_REGISTERS: u64 = 1 << 18;
/// Most bytes of the variables of a module, and of the parameters of a function.
const MAX_BYTES: u64 = 1 << 28;
/// Largest alignment, bytes.
const MAX_ALIGN: u64 = 1 << 16;
/// Deepest nesting of scopes and operands.
const MAX_DEPTH: usize = 64;

type Result<T, E = ParseError> = std::result::Result<T, E>;

struct Parser<'a> {
    tokens: &'a [(Token<'a>, u32)],
    at: usize,
    module: Module,
    /// Bytes of the variables so far.
    bytes: u64,
}

/// Names of one `{ }` scope of a function.
#[derive(Default)]
struct Scope<'a> {
    parent: Option<usize>,
    registers: HashMap<String, usize>,
    variables: HashMap<&'a str, usize>,
    labels: HashMap<&'a str, usize>,
    targets: HashMap<&'a str, Vec<&'a str>>,
}

/// A function while it is parsed.
struct Body<'a> {
    function: Function,
    scopes: Vec<Scope<'a>>,
    current: usize,
    /// Operands that name a label: (instruction, operand, name, scope, line).
    pending: Vec<(usize, usize, &'a str, usize, u32)>,
}

impl<'a> Body<'a> {
    /// Scopes from the given one outward.
    fn chain(&self, from: usize) -> impl Iterator<Item = &Scope<'a>> {
        std::iter::successors(Some(&self.scopes[from]), |scope| {
            scope.parent.map(|parent| &self.scopes[parent])
        })
    }

    fn register(&self, name: &str) -> Option<usize> {
        self.chain(self.current).find_map(|scope| scope.registers.get(name).copied())
    }
}

impl<'a> Parser<'a> {
    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |token| token.1)
    }

    fn error<T>(&self, text: impl Into<String>) -> Result<T> {
        Err(ParseError::new(self.line(), text))
    }

    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|token| token.0)
    }

    fn next(&mut self) -> Result<Token<'a>> {
        let token = self.peek();
        self.at += 1;
        match token {
            Some(token) => Ok(token),
            None => self.error("the text ends too early"),
        }
    }

    fn take(&mut self, punct: u8) -> bool {
        let found = self.peek() == Some(Token::Punct(punct));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, punct: u8) -> Result<()> {
        if self.take(punct) {
            return Ok(());
        }
        let found = self.peek();
        self.error(format!("expected `{}`, found {found:?}", punct as char))
    }

    fn word(&mut self) -> Result<&'a str> {
        match self.next()? {
            Token::Word(word) => Ok(word),
            other => {
                self.at -= 1;
                self.error(format!("expected a name, found {other:?}"))
            }
        }
    }

    fn integer(&mut self) -> Result<u64> {
        let negative = self.take(b'-');
        match self.next()? {
            Token::Integer(value) => Ok(if negative { value.wrapping_neg() } else { value }),
            other => {
                self.at -= 1;
                self.error(format!("expected an integer, found {other:?}"))
            }
        }
    }

    /// Skips the rest of a line.
    fn skip_line(&mut self, line: u32) {
        while self.at < self.tokens.len() && self.tokens[self.at].1 == line {
            self.at += 1;
        }
    }

    fn module(&mut self) -> Result<()> {
        while let Some(token) = self.peek() {
            match token {
                Token::Word(".version" | ".address_size" | ".file" | ".loc") => self.skip_line(self.line()),
                Token::Word(".section") => self.section()?,
                Token::Word(".target") => {
                    let line = self.line();
                    self.at += 1;
                    self.module.target = self.word()?.to_string();
                    self.skip_line(line);
                }
                Token::Word(".visible" | ".extern" | ".weak" | ".common") => self.at += 1,
                Token::Word(".entry" | ".func") => self.function()?,
                Token::Word(".global" | ".shared" | ".const") => {
                    let mut found = Vec::new();
                    self.variable(&mut found)?;
                    self.module.variables.append(&mut found);
                }
                Token::Word(".pragma") => {
                    while !self.take(b';') {
                        self.next()?;
                    }
                }
                Token::Punct(b';') => self.at += 1,
                other => return self.error(format!("unexpected {other:?} outside a function")),
            }
        }
        Ok(())
    }

    /// `.section .debug_... { ... }`: debug information, not read.
    fn section(&mut self) -> Result<()> {
        while self.next()? != Token::Punct(b'{') {}
        let mut depth = 1;
        while depth > 0 {
            match self.next()? {
                Token::Punct(b'{') => depth += 1,
                Token::Punct(b'}') => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// A variable declaration, from its state space to the semicolon.
    fn variable(&mut self, into: &mut Vec<Variable>) -> Result<()> {
        let space = match self.word()? {
            ".global" => Space::Global,
            ".const" => Space::Constant,
            ".local" => Space::Local,
            ".param" => Space::Param,
            _ => Space::Shared,
        };
        let (mut align, mut element, mut vector) = (None, 0, 1);
        while let Some(Token::Word(word)) = self.peek() {
            if !word.starts_with('.') {
                break;
            }
            self.at += 1;
            match word {
                ".align" => align = Some(self.integer()?),
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                ".attribute" => {
                    self.expect(b'(')?;
                    while !self.take(b')') {
                        self.next()?;
                    }
                }
                ".ptr" | ".shared" | ".global" | ".const" => {}
                _ => match bytes_of_type(word) {
                    Some(bytes) => element = bytes,
                    None => return self.error(format!("`{word}` is not a type")),
                },
            }
        }
        loop {
            let name = self.word()?.to_string();
            let mut count: u64 = 1;
            let mut array = false;
            while self.take(b'[') {
                array = true;
                let length = if self.peek() == Some(Token::Punct(b']')) { 0 } else { self.integer()? };
                count = match count.checked_mul(length) {
                    Some(count) => count,
                    None => return self.error(format!("`{name}` is too large")),
                };
                self.expect(b']')?;
            }
            let mut init = Vec::new();
            if self.take(b'=') {
                self.initializer(element, &mut init, 0)?;
                if array && count == 0 {
                    count = init.len() as u64 / element.max(1);
                }
            }
            let size = match count.checked_mul(element * vector) {
                Some(size) if size <= MAX_BYTES => size,
                _ => return self.error(format!("`{name}` is too large")),
            };
            self.bytes += size;
            if self.bytes > MAX_BYTES {
                return self.error(format!("more than {MAX_BYTES} bytes of variables"));
            }
            let align = self.alignment(align.unwrap_or(element * vector))?;
            into.push(Variable { space, name, align, size, init });
            if !self.take(b',') {
                break;
            }
        }
        self.expect(b';')
    }

    /// Checks an alignment; 0 counts as 1.
    fn alignment(&self, align: u64) -> Result<u64> {
        let align = align.max(1);
        if align.is_power_of_two() && align <= MAX_ALIGN {
            return Ok(align);
        }
        self.error(format!("alignment {align} is not a power of two up to {MAX_ALIGN}"))
    }

    fn initializer(&mut self, element: u64, into: &mut Vec<u8>, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return self.error("an initialiser is nested too deeply");
        }
        if self.take(b'{') {
            while !self.take(b'}') {
                self.initializer(element, into, depth + 1)?;
                self.take(b',');
            }
            return Ok(());
        }
        let negative = self.take(b'-');
        let single = |bits: u64| u64::from((f64::from_bits(bits) as f32).to_bits());
        let (value, sign) = match self.next()? {
            Token::Integer(value) => (if negative { value.wrapping_neg() } else { value }, 0),
            Token::Single(bits) => (u64::from(bits), 1 << 31),
            Token::Double(bits) if element == 4 => (single(bits), 1 << 31),
            Token::Double(bits) => (bits, 1 << 63),
            other => return self.error(format!("initial value {other:?} is not supported")),
        };
        let value = if negative { value ^ sign } else { value };
        if into.len() as u64 >= MAX_BYTES {
            return self.error(format!("more than {MAX_BYTES} bytes of initial values"));
        }
        into.extend_from_slice(&value.to_le_bytes()[..element.min(8) as usize]);
        Ok(())
    }

    fn function(&mut self) -> Result<()> {
        let entry = self.word()? == ".entry";
        if !entry && self.peek() == Some(Token::Punct(b'(')) {
            // Return values of a device function.
            while !self.take(b')') {
                self.next()?;
            }
        }
        let name = self.word()?.to_string();
        let mut parameters = Vec::new();
        if self.take(b'(') {
            while !self.take(b')') {
                self.parameter(&mut parameters)?;
                self.take(b',');
            }
        }
        let directives = self.directives()?;
        let function = Function {
            name,
            entry,
            parameters,
            directives,
            registers: Vec::new(),
            variables: Vec::new(),
            code: Vec::new(),
        };
        if self.take(b';') {
            return Ok(());
        }
        self.expect(b'{')?;
        let mut body = Body { function, scopes: vec![Scope::default()], current: 0, pending: Vec::new() };
        self.body(&mut body)?;
        for (instruction, operand, name, scope, line) in std::mem::take(&mut body.pending) {
            let resolve = |name: &str| body.chain(scope).find_map(|scope| scope.labels.get(name).copied());
            let resolved = match resolve(name) {
                Some(at) => Some(Operand::Label(at)),
                None => {
                    let table = body.chain(scope).find_map(|scope| scope.targets.get(name));
                    table.and_then(|names| {
                        names
                            .iter()
                            .map(|name| resolve(name))
                            .collect::<Option<Vec<_>>>()
                            .map(Operand::Targets)
                    })
                }
            };
            match resolved {
                Some(label) => body.function.code[instruction].operands[operand] = label,
                None => return Err(ParseError::new(line, format!("`{name}` is not declared"))),
            }
        }
        self.module.functions.push(body.function);
        Ok(())
    }

    fn parameter(&mut self, parameters: &mut Vec<Parameter>) -> Result<()> {
        let (mut align, mut element, mut pointer) = (None, 0, false);
        loop {
            match self.word()? {
                ".param" | ".global" | ".shared" | ".const" | ".local" | ".reg" => {}
                ".ptr" => pointer = true,
                ".align" => {
                    let bytes = self.integer()?;
                    // Behind `.ptr` the alignment is the pointee's.
                    if !pointer {
                        align = Some(bytes);
                    }
                }
                word => match bytes_of_type(word) {
                    Some(bytes) => element = bytes,
                    None => {
                        let mut size = element;
                        if self.take(b'[') {
                            size = size.saturating_mul(self.integer()?);
                            self.expect(b']')?;
                        }
                        let align = self.alignment(align.unwrap_or(element))?;
                        let end = parameters.last().map_or(0, |last: &Parameter| last.offset + last.size);
                        let offset = end.next_multiple_of(align);
                        if size > MAX_BYTES || offset > MAX_BYTES {
                            return self.error(format!("parameter `{word}` is too large"));
                        }
                        parameters.push(Parameter { name: word.to_string(), offset, size });
                        return Ok(());
                    }
                },
            }
        }
    }

    fn directives(&mut self) -> Result<Directives> {
        let mut directives = Directives::default();
        while let Some(Token::Word(word)) = self.peek() {
            self.at += 1;
            match word {
                ".reqntid" => directives.required_block = Some(self.shape()?),
                ".maxntid" => {
                    let threads = self.shape()?.iter().fold(1u32, |product, &n| product.saturating_mul(n));
                    directives.max_threads = Some(threads);
                }
                ".reqnctapercluster" => directives.required_cluster = Some(self.shape()?),
                ".maxclusterrank" | ".minnctapersm" | ".maxnreg" | ".maxnctapersm" => {
                    self.integer()?;
                }
                ".explicitcluster" | ".noreturn" | ".blocksareclusters" => {}
                ".pragma" => {
                    while !self.take(b';') {
                        self.next()?;
                    }
                }
                _ => return self.error(format!("`{word}` is not a directive of a function")),
            }
        }
        Ok(directives)
    }

    fn shape(&mut self) -> Result<[u32; 3]> {
        let mut shape = [1; 3];
        for (index, size) in shape.iter_mut().enumerate() {
            if index > 0 && !self.take(b',') {
                break;
            }
            *size = self.integer()? as u32;
        }
        Ok(shape)
    }

    /// Statements up to the brace that closes the function.
    fn body(&mut self, body: &mut Body<'a>) -> Result<()> {
        let mut depth = 1;
        while depth > 0 {
            match self.peek() {
                Some(Token::Punct(b'{')) => {
                    self.at += 1;
                    depth += 1;
                    if depth > MAX_DEPTH {
                        return self.error("scopes are nested too deeply");
                    }
                    body.scopes.push(Scope { parent: Some(body.current), ..Scope::default() });
                    body.current = body.scopes.len() - 1;
                }
                Some(Token::Punct(b'}')) => {
                    self.at += 1;
                    depth -= 1;
                    body.current = body.scopes[body.current].parent.unwrap_or(0);
                }
                Some(Token::Punct(b';')) => self.at += 1,
                Some(Token::Punct(b'@')) => self.instruction(body)?,
                Some(Token::Word(word)) => self.statement(body, word)?,
                other => return self.error(format!("unexpected {other:?} in a function")),
            }
        }
        Ok(())
    }

    fn statement(&mut self, body: &mut Body<'a>, word: &'a str) -> Result<()> {
        match word {
            ".reg" => self.registers(body),
            ".shared" | ".local" | ".param" | ".global" | ".const" => {
                let mut found = Vec::new();
                let start = self.at;
                self.variable(&mut found)?;
                for variable in found {
                    // The name as it stands in the text outlives the declaration.
                    let name = self.tokens[start..self.at].iter().find_map(|token| match token.0 {
                        Token::Word(word) if word == variable.name => Some(word),
                        _ => None,
                    });
                    if let Some(name) = name {
                        body.scopes[body.current].variables.insert(name, body.function.variables.len());
                    }
                    body.function.variables.push(variable);
                }
                Ok(())
            }
            ".loc" | ".file" => {
                self.skip_line(self.line());
                Ok(())
            }
            ".pragma" => {
                while !self.take(b';') {
                    self.next()?;
                }
                Ok(())
            }
            _ if word.starts_with('.') => self.error(format!("`{word}` is not supported in a function")),
            _ if self.tokens.get(self.at + 1).map(|token| token.0) == Some(Token::Punct(b':')) => {
                self.at += 2;
                if self.peek() == Some(Token::Word(".branchtargets")) {
                    self.at += 1;
                    let mut names = vec![self.word()?];
                    while self.take(b',') {
                        names.push(self.word()?);
                    }
                    body.scopes[body.current].targets.insert(word, names);
                    return self.expect(b';');
                }
                body.scopes[body.current].labels.insert(word, body.function.code.len());
                Ok(())
            }
            _ => self.instruction(body),
        }
    }

    fn registers(&mut self, body: &mut Body<'a>) -> Result<()> {
        self.at += 1;
        let mut kind = self.word()?;
        if matches!(kind, ".v2" | ".v4") {
            return self.error("vector registers are not supported");
        }
        let class = match kind {
            ".pred" => RegisterKind::Predicate,
            _ => match bytes_of_type(kind) {
                Some(1..=4) => RegisterKind::Narrow,
                Some(8) => RegisterKind::Wide,
                Some(16) => RegisterKind::Quad,
                _ => return self.error(format!("`{kind}` is not a register type")),
            },
        };
        loop {
            kind = self.word()?;
            let names: Vec<String> = if self.take(b'<') {
                let count = self.integer()?;
                self.expect(b'>')?;
                if count > MAX_REGISTERS {
                    return self.error(format!("{count} registers are more than {MAX_REGISTERS}"));
                }
                (0..count).map(|index| format!("{kind}{index}")).collect()
            } else {
                vec![kind.to_string()]
            };
            for name in names {
                let index = body.function.registers.len();
                if index as u64 >= MAX_REGISTERS {
                    return self.error(format!("more than {MAX_REGISTERS} registers"));
                }
                body.function.registers.push(Register { name: name.clone(), kind: class });
                body.scopes[body.current].registers.insert(name, index);
            }
            if !self.take(b',') {
                return self.expect(b';');
            }
        }
    }

    fn instruction(&mut self, body: &mut Body<'a>) -> Result<()> {
        let line = self.line();
        let mut guard = None;
        if self.take(b'@') {
            let inverted = self.take(b'!');
            let name = self.word()?;
            match body.register(name) {
                Some(register) => guard = Some((register, inverted)),
                None => return self.error(format!("predicate `{name}` is not declared")),
            }
        }
        let opcode = self.word()?.to_string();
        let mut operands = Vec::new();
        if !self.take(b';') {
            loop {
                let operand = self.operand(body, operands.len(), 0)?;
                operands.push(operand);
                if self.take(b';') {
                    break;
                }
                // `call (ret), name, (args);` and coordinates are separated by commas alike.
                self.expect(b',')?;
            }
        }
        body.function.code.push(Instruction { line, guard, opcode, operands });
        Ok(())
    }

    fn operand(&mut self, body: &mut Body<'a>, index: usize, depth: usize) -> Result<Operand> {
        if depth > MAX_DEPTH {
            return self.error("operands are nested too deeply");
        }
        let operand = match self.next()? {
            Token::Punct(b'{') => {
                let mut parts = Vec::new();
                while !self.take(b'}') {
                    parts.push(self.operand(body, usize::MAX, depth + 1)?);
                    self.take(b',');
                }
                Operand::Vector(parts)
            }
            Token::Punct(b'(') => {
                let mut parts = Vec::new();
                while !self.take(b')') {
                    parts.push(self.operand(body, usize::MAX, depth + 1)?);
                    self.take(b',');
                }
                Operand::Vector(parts)
            }
            Token::Punct(b'[') => {
                let base = self.operand(body, usize::MAX, depth + 1)?;
                let operand = if self.take(b'+') || self.peek() == Some(Token::Punct(b'-')) {
                    let offset = self.integer()? as i64;
                    Operand::Address(Box::new(base), offset)
                } else if self.take(b',') {
                    let coordinates = match self.operand(body, usize::MAX, depth + 1)? {
                        Operand::Vector(parts) => parts,
                        other => vec![other],
                    };
                    Operand::Tensor(Box::new(base), coordinates)
                } else {
                    Operand::Address(Box::new(base), 0)
                };
                self.expect(b']')?;
                operand
            }
            Token::Punct(b'-') => match self.next()? {
                Token::Integer(value) => Operand::Immediate(Immediate::Integer(value.wrapping_neg())),
                Token::Single(bits) => Operand::Immediate(Immediate::Single(bits ^ 1 << 31)),
                Token::Double(bits) => Operand::Immediate(Immediate::Double(bits ^ 1 << 63)),
                other => return self.error(format!("unexpected {other:?} behind a minus sign")),
            },
            Token::Punct(b'!') => {
                let name = self.word()?;
                match body.register(name) {
                    Some(register) => Operand::Not(register),
                    None => return self.error(format!("predicate `{name}` is not declared")),
                }
            }
            Token::Integer(value) => Operand::Immediate(Immediate::Integer(value)),
            Token::Single(bits) => Operand::Immediate(Immediate::Single(bits)),
            Token::Double(bits) => Operand::Immediate(Immediate::Double(bits)),
            Token::Word(name) => self.name(body, name, index)?,
            other => {
                self.at -= 1;
                return self.error(format!("unexpected {other:?} in an operand"));
            }
        };
        if self.take(b'|') {
            let second = self.operand(body, usize::MAX, depth + 1)?;
            return Ok(Operand::Pair(Box::new(operand), Box::new(second)));
        }
        Ok(operand)
    }

    fn name(&mut self, body: &mut Body<'a>, name: &'a str, index: usize) -> Result<Operand> {
        if name == "_" {
            return Ok(Operand::Sink);
        }
        if let Some(register) = body.register(name) {
            return Ok(Operand::Register(register));
        }
        if name.starts_with('%') {
            return Ok(Operand::Special(name.to_string()));
        }
        let own = body.chain(body.current).find_map(|scope| scope.variables.get(name).copied());
        if let Some(variable) = own {
            return Ok(Operand::Symbol(SymbolRef::Function(variable)));
        }
        if let Some(at) = body.function.parameters.iter().position(|parameter| parameter.name == name) {
            return Ok(Operand::Symbol(SymbolRef::Parameter(at)));
        }
        if let Some(&variable) = self.module.names().get(name) {
            return Ok(Operand::Symbol(SymbolRef::Module(variable)));
        }
        if index == usize::MAX {
            return self.error(format!("`{name}` is not declared"));
        }
        body.pending.push((body.function.code.len(), index, name, body.current, self.line()));
        Ok(Operand::Sink)
    }
}

/// Bytes of a fundamental type.
fn bytes_of_type(word: &str) -> Option<u64> {
    Some(match word {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" | ".tf32" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" | ".f32x2" => 8,
        ".b128" => 16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = r#"
.version 8.8
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 smem[];
.global .align 4 .b8 table[4] = {1, 2, 3, 255};
.visible .entry k(.param .u64 .ptr .global .align 1 k_param_0, .param .u32 k_param_1,
    .param .align 64 .b8 k_param_2[128])
.reqntid 128, 2
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [k_param_0];
    mov.u32 %r1, %tid.x;
    @!%p1 bra DONE;
    { .reg .pred done; loop: mbarrier.try_wait.parity.shared::cta.b64 done, [%r1+8], %r2; @!done bra.uni loop; }
    { .reg .pred done; loop: setp.ne.s32 done|%p0, %r1, -1; @done bra loop; }
    ld.shared.v2.b32 {%r1, _}, [smem - 4];
    cp.async.bulk.tensor.2d.shared::cta.global.tile [%r1], [%rd1, {%r2, %r3}], [%r0];
DONE:
    ret;
}
"#;

    #[test]
    fn a_kernel() {
        let module = parse(KERNEL).unwrap();
        assert_eq!(module.target, "sm_90a");
        assert_eq!(module.variables[1].init, [1, 2, 3, 255]);
        let kernel = module.function("k").unwrap();
        let offsets: Vec<_> = kernel.parameters.iter().map(|p| (p.offset, p.size)).collect();
        assert_eq!(offsets, [(0, 8), (8, 4), (64, 128)]);
        assert_eq!(kernel.directives.required_block, Some([128, 2, 1]));
        // The two loops have labels of the same name in scopes of their own.
        let targets: Vec<_> = kernel
            .code
            .iter()
            .flat_map(|instruction| &instruction.operands)
            .filter_map(|operand| match operand {
                Operand::Label(at) => Some(*at),
                _ => None,
            })
            .collect();
        assert_eq!(targets, [9, 3, 5]);
        assert_ne!(kernel.code[3].operands[0], kernel.code[5].operands[0]);
        let Operand::Address(base, offset) = &kernel.code[7].operands[1] else { panic!() };
        assert_eq!((&**base, *offset), (&Operand::Symbol(SymbolRef::Module(0)), -4));
        assert!(matches!(&kernel.code[8].operands[1], Operand::Tensor(_, c) if c.len() == 2));
    }

    #[test]
    fn errors_name_the_line() {
        let check = |text: &str, line: u32, part: &str| {
            let error = parse(text).unwrap_err();
            assert!(error.line == line && error.text.contains(part), "{error}");
        };
        check(".target sm_80\n.entry k()\n{\n bra NOWHERE;\n}", 4, "NOWHERE");
        check(".entry k() {\n .reg .b32 %r<99999999>; }", 2, "more than");
        check(".entry k() {\n @%p1 ret; }", 2, "%p1");
        check(".entry k() {\n ret; ", 2, "in a function");
        check("nonsense", 1, "outside a function");
    }

    #[test]
    fn every_golden_kernel_parses() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/ptx/triton");
        let mut parsed = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "ptx") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let module = parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(module.functions.iter().any(|function| function.entry), "{}", path.display());
            parsed += 1;
        }
        assert_eq!(parsed, 103);
    }
}
