//! Collectives of a warp, a block and a cluster.

use super::{Lowering, Modifiers, Result, Type, take};
use crate::execute::Operands;
use crate::program::{Action, BarrierReduction, Redux, SINK, ShuffleMode, VoteMode};
use crate::text::{Immediate, Operand};

impl Lowering<'_> {
    pub(super) fn warp(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<bool> {
        match m.mnemonic {
            "shfl" => self.shuffle(m, operands)?,
            "vote" => self.vote(m, operands)?,
            "match" => self.match_lanes(m, operands)?,
            "redux" => self.redux(m, operands)?,
            "elect" => {
                let [d, members] = take(operands)?;
                let (d, p) = match d {
                    Operand::Pair(d, p) => (&**d, &**p),
                    _ => return Err("`d|p` is needed".to_string()),
                };
                let members = self.narrow(members, Type::B32)?;
                let d = self.destination(d, Type::B32)?;
                let predicate = self.predicate_destination(p)?;
                self.emit(Action::Elect { members, predicate }, Operands { d, ..Operands::default() });
            }
            "activemask" => {
                let [d] = take(operands)?;
                let d = self.destination(d, Type::B32)?;
                self.emit(Action::ActiveMask, Operands { d, ..Operands::default() });
            }
            "bar" | "barrier" => return self.barrier(m, operands).map(|()| true),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn shuffle(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        let [d, a, b, c, members] = take(operands)?;
        let mode = match () {
            () if m.has("up") => ShuffleMode::Up,
            () if m.has("down") => ShuffleMode::Down,
            () if m.has("bfly") => ShuffleMode::Butterfly,
            () if m.has("idx") => ShuffleMode::Index,
            () => return Err("no mode".to_string()),
        };
        let (d, p) = match d {
            Operand::Pair(d, p) => (self.destination(d, Type::B32)?, self.predicate_destination(p)?),
            d => (self.destination(d, Type::B32)?, SINK),
        };
        let o = Operands {
            a: self.narrow(a, Type::B32)?,
            b: self.narrow(b, Type::B32)?,
            c: self.narrow(c, Type::B32)?,
            d,
            imm: u64::from(p),
        };
        let members = self.narrow(members, Type::B32)?;
        self.emit(Action::Shuffle { mode, members }, o);
        Ok(())
    }

    fn vote(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        let [d, p, members] = take(operands)?;
        let mode = match () {
            () if m.has("all") => VoteMode::All,
            () if m.has("any") => VoteMode::Any,
            () if m.has("uni") => VoteMode::Uniform,
            () if m.has("ballot") => VoteMode::Ballot,
            () => return Err("no mode".to_string()),
        };
        let (source, invert) = self.predicate(p)?;
        let members = self.narrow(members, Type::B32)?;
        let (o, destination) = match mode {
            VoteMode::Ballot => {
                (Operands { d: self.destination(d, Type::B32)?, ..Operands::default() }, SINK)
            }
            _ => (Operands::default(), self.predicate_destination(d)?),
        };
        self.emit(Action::Vote { mode, members, destination, source, invert }, o);
        Ok(())
    }

    fn match_lanes(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        let [d, a, members] = take(operands)?;
        let (d, predicate) = match d {
            Operand::Pair(d, p) => (self.destination(d, Type::B32)?, self.predicate_destination(p)?),
            d => (self.destination(d, Type::B32)?, SINK),
        };
        let ty = m.ty()?;
        let o = Operands { d, a: self.source(a, ty)?, ..Operands::default() };
        let members = self.narrow(members, Type::B32)?;
        self.emit(Action::Match { all: m.has("all"), wide: ty.is_wide(), members, predicate }, o);
        Ok(())
    }

    fn redux(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        let [d, a, members] = take(operands)?;
        let (abs, nan) = (m.has("abs"), m.has("NaN"));
        let op = match (m.ty()?, m.rest.iter().find(|op| !["sync", "abs", "NaN"].contains(op)).copied()) {
            (Type::U32 | Type::S32, Some("add")) => Redux::AddU32,
            (Type::U32, Some("min")) => Redux::MinU32,
            (Type::U32, Some("max")) => Redux::MaxU32,
            (Type::S32, Some("min")) => Redux::MinS32,
            (Type::S32, Some("max")) => Redux::MaxS32,
            (Type::B32, Some("and")) => Redux::And,
            (Type::B32, Some("or")) => Redux::Or,
            (Type::B32, Some("xor")) => Redux::Xor,
            (Type::F32, Some("min")) => Redux::MinF32 { abs, nan },
            (Type::F32, Some("max")) => Redux::MaxF32 { abs, nan },
            _ => return Err("the operation is not defined for this type".to_string()),
        };
        let o = Operands {
            a: self.narrow(a, Type::B32)?,
            d: self.destination(d, Type::B32)?,
            ..Operands::default()
        };
        let members = self.narrow(members, Type::B32)?;
        self.emit(Action::Redux { op, members }, o);
        Ok(())
    }

    fn barrier(&mut self, m: &Modifiers<'_>, operands: &[Operand]) -> Result<()> {
        if m.has("warp") {
            let [members] = take(operands)?;
            let members = self.narrow(members, Type::B32)?;
            self.emit(Action::WarpSync { members }, Operands::default());
            return Ok(());
        }
        // `bar` promises that all lanes arrive together, `barrier` only with `.aligned`.
        let aligned = m.mnemonic == "bar" || m.has("aligned");
        if m.has("cluster") {
            let action = if m.has("wait") {
                Action::ClusterWait { aligned: m.has("aligned") }
            } else {
                Action::ClusterArrive { aligned: m.has("aligned"), relaxed: m.has("relaxed") }
            };
            self.emit(action, Operands::default());
            return Ok(());
        }
        if m.has("red") {
            let op = match () {
                () if m.has("popc") => BarrierReduction::Popc,
                () if m.has("and") => BarrierReduction::And,
                () => BarrierReduction::Or,
            };
            let (d, a, b, p) = match operands {
                [d, a, p] => (d, a, None, p),
                [d, a, b, p] => (d, a, Some(b), p),
                _ => return Err(format!("{} operands", operands.len())),
            };
            let (source, invert) = self.predicate(p)?;
            let a = self.narrow(a, Type::U32)?;
            let slot = b.map(|b| self.narrow(b, Type::U32)).transpose()?;
            let (d, destination) = match op {
                BarrierReduction::Popc => (self.destination(d, Type::U32)?, SINK),
                _ => (self.sink, self.predicate_destination(d)?),
            };
            let o = Operands { d, a, b: slot.unwrap_or(0), ..Operands::default() };
            let counted = b.is_some();
            self.emit(Action::BarrierReduce { op, counted, source, invert, destination }, o);
            return Ok(());
        }
        let wait = !m.has("arrive");
        let zero = Operand::Immediate(Immediate::Integer(0));
        let (a, b) = match operands {
            [] => (&zero, None),
            [a] => (a, None),
            [a, b] => (a, Some(b)),
            _ => return Err(format!("{} operands", operands.len())),
        };
        if !wait && b.is_none() {
            return Err("an arrival needs a number of threads".to_string());
        }
        let a = self.narrow(a, Type::U32)?;
        let slot = b.map(|b| self.narrow(b, Type::U32)).transpose()?;
        let o = Operands { a, b: slot.unwrap_or(0), ..Operands::default() };
        self.emit(Action::Barrier { wait, counted: slot.is_some(), aligned }, o);
        Ok(())
    }
}
