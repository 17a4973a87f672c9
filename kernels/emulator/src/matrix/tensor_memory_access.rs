//! `tcgen05.ld` and `tcgen05.st`: registers of a warp and the quarter of tensor memory it reaches.

use super::tensor_memory::{TensorMemory, split_address};
use crate::Lanes;

/// A parsed `tcgen05.ld` or `tcgen05.st` instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMemoryAccess {
    shape: Shape,
    repeat: usize,
    /// Two columns of 16 bits per register (`pack::16b`, `unpack::16b`).
    packed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    L16x64b,
    L16x128b,
    L16x256b,
    L32x32b,
    L16x32bx2,
}

impl TensorMemoryAccess {
    /// `modifiers`: what follows `tcgen05.`, split at dots. Errors name the modifier or the
    /// combination.
    pub fn parse(modifiers: &[&str]) -> Result<Self, String> {
        let (mut shape, mut repeat, mut packed) = (None, None, false);
        for &modifier in modifiers {
            match modifier {
                "ld" | "st" | "sync" | "aligned" | "b32" => {}
                "16x64b" => shape = Some(Shape::L16x64b),
                "16x128b" => shape = Some(Shape::L16x128b),
                "16x256b" => shape = Some(Shape::L16x256b),
                "32x32b" => shape = Some(Shape::L32x32b),
                "16x32bx2" => shape = Some(Shape::L16x32bx2),
                "pack::16b" | "unpack::16b" => packed = true,
                _ => match modifier.strip_prefix('x').and_then(|count| count.parse::<usize>().ok()) {
                    Some(count) => repeat = Some(count),
                    None => return Err(format!("tcgen05: unknown modifier .{modifier}")),
                },
            }
        }
        if let Some((shape, repeat)) = shape.zip(repeat) {
            let access = Self { shape, repeat, packed };
            if repeat.is_power_of_two() && access.num_registers() <= 128 {
                return Ok(access);
            }
        }
        Err(format!("tcgen05.{}: unsupported combination", modifiers.join(".")))
    }

    /// Registers per thread.
    pub fn num_registers(&self) -> usize {
        self.repeat
            * match self.shape {
                Shape::L16x64b | Shape::L32x32b | Shape::L16x32bx2 => 1,
                Shape::L16x128b => 2,
                Shape::L16x256b => 4,
            }
    }

    /// Whether the instruction has an immediate that offsets the columns of lanes 16 to 31.
    pub fn has_half_offset(&self) -> bool {
        self.shape == Shape::L16x32bx2
    }

    /// Tensor-memory lane and column, relative to the address, of `register` of `lane`, in units of
    /// 32 bits of an unpacked access. `half_offset` is excluded.
    fn position(&self, lane: usize, register: usize) -> (usize, usize) {
        match self.shape {
            Shape::L32x32b => (lane, register),
            Shape::L16x32bx2 => (lane % 16, register),
            Shape::L16x64b => (lane / 4 + 8 * (lane % 2), lane % 4 / 2 + 2 * register),
            Shape::L16x128b => (lane / 4 + 8 * (register % 2), lane % 4 + 4 * (register / 2)),
            Shape::L16x256b => {
                (lane / 4 + 8 * (register / 2 % 2), 2 * (lane % 4) + register % 2 + 8 * (register / 4))
            }
        }
    }

    /// Absolute lane and column, the first of two when packed.
    fn cell(
        &self,
        warp_in_group: usize,
        address: u32,
        half_offset: u32,
        lane: usize,
        register: usize,
    ) -> Result<(usize, usize), String> {
        let (first_lane, first_column) = split_address(address);
        let (row, column) = self.position(lane, register);
        let shift = if self.has_half_offset() && lane >= 16 { half_offset as usize } else { 0 };
        let cell = (first_lane + row, first_column + shift + column * if self.packed { 2 } else { 1 });
        if cell.0 / 32 != warp_in_group {
            return Err(format!(
                "tcgen05: warp {warp_in_group} of the group does not reach tensor-memory lane {}",
                cell.0
            ));
        }
        Ok(cell)
    }

    /// `tcgen05.ld`: fills `out` (at least [`TensorMemoryAccess::num_registers`]) from `address`.
    /// Returns whether every cell had been written; others read as zero.
    ///
    /// - `warp_in_group`: warp index mod 4
    /// - `half_offset`: the immediate of 16x32bx2, in columns
    pub fn load(
        &self,
        memory: &TensorMemory,
        warp_in_group: usize,
        address: u32,
        half_offset: u32,
        out: &mut [Lanes],
    ) -> Result<bool, String> {
        let mut all_written = true;
        for (register, lanes) in out[..self.num_registers()].iter_mut().enumerate() {
            for (lane, value) in lanes.iter_mut().enumerate() {
                let (row, column) = self.cell(warp_in_group, address, half_offset, lane, register)?;
                let mut read = |column| -> Result<u32, String> {
                    let cell = memory.read(row, column)?;
                    all_written &= cell.is_some();
                    Ok(cell.unwrap_or(0))
                };
                *value = read(column)?;
                if self.packed {
                    *value = *value & 0xffff | read(column + 1)? << 16;
                }
            }
        }
        Ok(all_written)
    }

    /// `tcgen05.st`: the inverse of [`TensorMemoryAccess::load`].
    pub fn store(
        &self,
        memory: &mut TensorMemory,
        warp_in_group: usize,
        address: u32,
        half_offset: u32,
        registers: &[Lanes],
    ) -> Result<(), String> {
        for (register, lanes) in registers[..self.num_registers()].iter().enumerate() {
            for (lane, &value) in lanes.iter().enumerate() {
                let (row, column) = self.cell(warp_in_group, address, half_offset, lane, register)?;
                if self.packed {
                    memory.write(row, column, value & 0xffff)?;
                    memory.write(row, column + 1, value >> 16)?;
                } else {
                    memory.write(row, column, value)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::golden::{self, Random, modifiers};

    fn parse(text: &str) -> TensorMemoryAccess {
        TensorMemoryAccess::parse(&modifiers(text)).expect(text)
    }

    /// Cells that hold lane << 16 | column.
    fn numbered() -> TensorMemory {
        let mut memory = TensorMemory::new();
        memory.allocate(512).expect("room");
        for lane in 0..128 {
            for column in 0..512 {
                memory.write(lane, column, (lane << 16 | column) as u32).expect("allocated");
            }
        }
        memory
    }

    #[test]
    fn registers_come_from_the_cells_the_tables_name() {
        let fragments = golden::fragments();
        let memory = numbered();
        let entries = fragments["tcgen05_ld"].as_object().expect("an object");
        assert_eq!(entries.len(), 6);
        for (name, entry) in entries {
            let table: Vec<Vec<[usize; 2]>> =
                serde_json::from_value(entry["source"].clone()).expect("a table");
            let access = parse(name);
            assert_eq!(access.num_registers(), table[0].len(), "{name}");
            for (warp, column) in [(0, 0), (3, 40)] {
                let mut out = vec![[0; 32]; access.num_registers()];
                let address = (32 * warp as u32) << 16 | column;
                assert_eq!(access.load(&memory, warp, address, 0, &mut out), Ok(true));
                for (lane, cells) in table.iter().enumerate() {
                    for (register, &[row, col]) in cells.iter().enumerate() {
                        let expected = address + ((row << 16) + col) as u32;
                        assert_eq!(out[register][lane], expected, "{name} lane {lane} register {register}");
                    }
                }
            }
        }
    }

    #[test]
    fn half_offset_moves_the_upper_lanes() {
        let memory = numbered();
        let mut out = [[0; 32]; 2];
        let access = parse("tcgen05.ld.sync.aligned.16x32bx2.x2.b32");
        access.load(&memory, 1, 32 << 16 | 8, 100, &mut out).expect("allocated");
        for lane in 0..32u32 {
            let first = (32 + lane % 16) << 16 | (8 + lane / 16 * 100);
            assert_eq!([out[0][lane as usize], out[1][lane as usize]], [first, first + 1]);
        }
    }

    #[test]
    fn packed_registers_hold_two_columns() {
        let memory = numbered();
        let mut out = [[0; 32]; 4];
        let access = parse("tcgen05.ld.sync.aligned.16x64b.x4.pack::16b.b32");
        access.load(&memory, 0, 0, 0, &mut out).expect("allocated");
        for (register, lanes) in out.iter().enumerate() {
            for (lane, &value) in lanes.iter().enumerate() {
                let column = 2 * (lane % 4 / 2 + 2 * register) as u32;
                assert_eq!(value, column | (column + 1) << 16);
            }
        }
    }

    #[test]
    fn stores_and_loads_are_inverse() {
        let mut random = Random(5);
        for shape in ["16x64b.x16", "16x128b.x8", "16x256b.x2", "32x32b.x32", "16x32bx2.x16"] {
            for (pack, unpack) in [("", ""), (".pack::16b", ".unpack::16b")] {
                let mut memory = TensorMemory::new();
                memory.allocate(128).expect("room");
                let store = parse(&format!("tcgen05.st.sync.aligned.{shape}{unpack}.b32"));
                let load = parse(&format!("tcgen05.ld.sync.aligned.{shape}{pack}.b32"));
                let registers: Vec<Lanes> = (0..store.num_registers())
                    .map(|_| std::array::from_fn(|_| random.next() as u32))
                    .collect();
                let mut out = vec![[0; 32]; registers.len()];
                let address = 64 << 16 | 3;
                assert_eq!(load.load(&memory, 2, address, 64, &mut out), Ok(false), "{shape}");
                store.store(&mut memory, 2, address, 64, &registers).expect(shape);
                assert_eq!(load.load(&memory, 2, address, 64, &mut out), Ok(true), "{shape}{pack}");
                assert_eq!(out, registers, "{shape}{pack}");
                assert!(load.load(&memory, 1, address, 64, &mut out).is_err(), "{shape}");
                assert!(load.load(&memory, 2, 64 << 16 | 127, 64, &mut out).is_err(), "{shape}");
            }
        }
    }

    #[test]
    fn unknown_forms_are_errors() {
        for text in [
            "tcgen05.ld.sync.aligned.32x32b.b32",
            "tcgen05.ld.sync.aligned.32x32b.x3.b32",
            "tcgen05.ld.sync.aligned.16x256b.x64.b32",
            "tcgen05.ld.red.sync.aligned.32x32b.x2.b32",
        ] {
            assert!(TensorMemoryAccess::parse(&modifiers(text)).is_err(), "{text}");
        }
    }
}
