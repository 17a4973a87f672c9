//! `setp`, `set` and `testp`: predicates of one or two values.

/// Comparison operators of floating-point values; integers use the first six, with `lo ls hi hs` as the unsigned
/// `lt le gt ge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `==`, false on NaN.
    Eq,
    /// `!=`, false on NaN.
    Ne,
    /// `<`, false on NaN.
    Lt,
    /// `<=`, false on NaN.
    Le,
    /// `>`, false on NaN.
    Gt,
    /// `>=`, false on NaN.
    Ge,
    /// `==`, true on NaN.
    Equ,
    /// `!=`, true on NaN.
    Neu,
    /// `<`, true on NaN.
    Ltu,
    /// `<=`, true on NaN.
    Leu,
    /// `>`, true on NaN.
    Gtu,
    /// `>=`, true on NaN.
    Geu,
    /// Neither operand is NaN.
    Num,
    /// An operand is NaN.
    Nan,
}

impl Comparison {
    /// The operator of that PTX name, `lo ls hi hs` included.
    pub fn parse(name: &str) -> Option<Comparison> {
        Some(match name {
            "eq" => Comparison::Eq,
            "ne" => Comparison::Ne,
            "lt" | "lo" => Comparison::Lt,
            "le" | "ls" => Comparison::Le,
            "gt" | "hi" => Comparison::Gt,
            "ge" | "hs" => Comparison::Ge,
            "equ" => Comparison::Equ,
            "neu" => Comparison::Neu,
            "ltu" => Comparison::Ltu,
            "leu" => Comparison::Leu,
            "gtu" => Comparison::Gtu,
            "geu" => Comparison::Geu,
            "num" => Comparison::Num,
            "nan" => Comparison::Nan,
            _ => return None,
        })
    }
}

/// The predicate of `setp` and `set`, before `.and`, `.or`, `.xor`. The 16-bit formats compare as f32.
#[inline(always)]
#[allow(clippy::eq_op, clippy::neg_cmp_op_on_partial_ord, reason = "NaN is what differs from itself")]
pub fn compare<T: PartialOrd + Copy>(comparison: Comparison, a: T, b: T) -> bool {
    let nan = a != a || b != b;
    match comparison {
        Comparison::Eq => a == b,
        Comparison::Ne => a != b && !nan,
        Comparison::Lt => a < b,
        Comparison::Le => a <= b,
        Comparison::Gt => a > b,
        Comparison::Ge => a >= b,
        Comparison::Equ => a == b || nan,
        Comparison::Neu => a != b,
        Comparison::Ltu => !(a >= b),
        Comparison::Leu => !(a > b),
        Comparison::Gtu => !(a <= b),
        Comparison::Geu => !(a < b),
        Comparison::Num => !nan,
        Comparison::Nan => nan,
    }
}

/// The properties that `testp` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// `.finite`.
    Finite,
    /// `.infinite`.
    Infinite,
    /// `.number`: not NaN.
    Number,
    /// `.notanumber`.
    NotANumber,
    /// `.normal`: neither zero, subnormal, infinite nor NaN.
    Normal,
    /// `.subnormal`: not zero, below the smallest normal value.
    Subnormal,
}

/// `testp.f32`.
#[inline(always)]
pub fn test(property: Property, x: f32) -> bool {
    match property {
        Property::Finite => x.abs() < f32::INFINITY,
        Property::Infinite => x.abs() == f32::INFINITY,
        Property::Number => !x.is_nan(),
        Property::NotANumber => x.is_nan(),
        Property::Normal => x.abs() >= f32::MIN_POSITIVE && x.abs() < f32::INFINITY,
        Property::Subnormal => x != 0.0 && x.abs() < f32::MIN_POSITIVE,
    }
}

/// `testp.f64`.
#[inline(always)]
pub fn test_f64(property: Property, x: f64) -> bool {
    match property {
        Property::Finite => x.abs() < f64::INFINITY,
        Property::Infinite => x.abs() == f64::INFINITY,
        Property::Number => !x.is_nan(),
        Property::NotANumber => x.is_nan(),
        Property::Normal => x.abs() >= f64::MIN_POSITIVE && x.abs() < f64::INFINITY,
        Property::Subnormal => x != 0.0 && x.abs() < f64::MIN_POSITIVE,
    }
}
