//! Tensor memory: 128 lanes x 512 columns of 32 bits, with the allocation of columns.
//!
//! An address is lane << 16 | column. Reading or writing a column outside an allocation is an
//! error; every cell records whether it was written since its column was allocated.

use super::product::Row;

/// Lanes of tensor memory.
pub const LANES: usize = 128;
/// Columns of tensor memory.
pub const COLUMNS: usize = 512;

/// The tensor memory of one block's multiprocessor.
#[derive(Clone, Debug)]
pub struct TensorMemory {
    /// `[COLUMNS][LANES]`
    cells: Vec<[u32; LANES]>,
    /// Bit l: lane l of the column was written.
    written: Vec<u128>,
    /// First column and size of each allocation.
    allocations: Vec<(usize, usize)>,
    /// `[COLUMNS]`: columns of allocations.
    owned: Vec<bool>,
    permit: bool,
}

impl Default for TensorMemory {
    fn default() -> Self {
        Self::new()
    }
}

/// Lane and column of an address.
pub(super) fn split_address(address: u32) -> (usize, usize) {
    ((address >> 16) as usize, (address & 0xffff) as usize)
}

impl TensorMemory {
    /// Nothing allocated, nothing written.
    pub fn new() -> Self {
        Self {
            cells: vec![[0; LANES]; COLUMNS],
            written: vec![0; COLUMNS],
            allocations: vec![],
            owned: vec![false; COLUMNS],
            permit: true,
        }
    }

    /// `tcgen05.alloc`: the address of `columns` (a power of two from 32 to 512) new columns,
    /// aligned to their number, or `None` when the instruction has to wait for a deallocation.
    pub fn allocate(&mut self, columns: u32) -> Result<Option<u32>, String> {
        if !self.permit {
            return Err("tcgen05.alloc after tcgen05.relinquish_alloc_permit".to_string());
        }
        let size = columns as usize;
        if !size.is_power_of_two() || !(32..=COLUMNS).contains(&size) {
            return Err(format!(
                "tcgen05.alloc of {columns} columns: a power of two from 32 to 512 is allowed"
            ));
        }
        let free = |&first: &usize| !self.owned[first..first + size].contains(&true);
        let Some(first) = (0..COLUMNS).step_by(size).find(free) else { return Ok(None) };
        self.allocations.push((first, size));
        self.owned[first..first + size].fill(true);
        self.written[first..first + size].fill(0);
        Ok(Some(first as u32))
    }

    /// `tcgen05.dealloc`: address and size must be those of an allocation.
    pub fn deallocate(&mut self, address: u32, columns: u32) -> Result<(), String> {
        let wanted = (address as usize, columns as usize);
        let found = self.allocations.iter().position(|&allocation| allocation == wanted);
        let found = found.ok_or_else(|| {
            format!("tcgen05.dealloc of {columns} columns at {address:#x}: no such allocation")
        })?;
        let (first, size) = self.allocations.swap_remove(found);
        self.owned[first..first + size].fill(false);
        Ok(())
    }

    /// `tcgen05.relinquish_alloc_permit`: later allocations are errors.
    pub fn relinquish(&mut self) {
        self.permit = false;
    }

    /// Columns in allocations; a kernel must leave none.
    pub fn num_allocated(&self) -> usize {
        self.owned.iter().filter(|&&owned| owned).count()
    }

    /// The cell, or `None` where nothing was written.
    pub fn read(&self, lane: usize, column: usize) -> Result<Option<u32>, String> {
        self.check(lane, column)?;
        Ok((self.written[column] >> lane & 1 == 1).then(|| self.cells[column][lane]))
    }

    /// Overwrites a cell.
    pub fn write(&mut self, lane: usize, column: usize, value: u32) -> Result<(), String> {
        self.check(lane, column)?;
        self.cells[column][lane] = value;
        self.written[column] |= 1 << lane;
        Ok(())
    }

    #[inline(always)]
    fn check(&self, lane: usize, column: usize) -> Result<(), String> {
        if lane >= LANES || !self.owned.get(column).is_some_and(|&owned| owned) {
            return Err(format!("tensor memory lane {lane}, column {column} is not allocated"));
        }
        Ok(())
    }

    /// A cell that must have been written.
    pub(super) fn read_written(&self, lane: usize, column: usize) -> Result<u32, String> {
        let value = self.read(lane, column)?;
        value
            .ok_or_else(|| format!("tensor memory lane {lane}, column {column} is read before it is written"))
    }

    /// 16 lanes x 8 columns, every cell written before.
    #[inline(always)]
    pub(super) fn read_tile(&self, lane: usize, column: usize) -> Result<[Row<u32>; 16], String> {
        let mut tile = [[0; 8]; 16];
        for n in 0..8 {
            // The last lane stands for the check of all.
            self.check(lane + 15, column + n)?;
            let missing = !(self.written[column + n] >> lane) as u16;
            if missing != 0 {
                self.read_written(lane + missing.trailing_zeros() as usize, column + n)?;
            }
            for (row, &cell) in tile.iter_mut().zip(&self.cells[column + n][lane..lane + 16]) {
                row[n] = cell;
            }
        }
        Ok(tile)
    }

    /// Inverse of [`TensorMemory::read_tile`]; bit l of `disabled` protects lane l.
    #[inline(always)]
    pub(super) fn write_tile(
        &mut self,
        lane: usize,
        column: usize,
        tile: &[Row<u32>; 16],
        disabled: u128,
    ) -> Result<(), String> {
        for n in 0..8 {
            self.check(lane + 15, column + n)?;
            let enabled = (!disabled >> lane) as u16;
            self.written[column + n] |= (enabled as u128) << lane;
            let cells = &mut self.cells[column + n][lane..lane + 16];
            for (m, cell) in cells.iter_mut().enumerate() {
                *cell = if enabled >> m & 1 == 1 { tile[m][n] } else { *cell };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_allocated_by_powers_of_two() {
        let mut memory = TensorMemory::new();
        assert_eq!(memory.allocate(64), Ok(Some(0)));
        assert_eq!(memory.allocate(256), Ok(Some(256)));
        assert_eq!(memory.allocate(32), Ok(Some(64)));
        assert_eq!(memory.allocate(256), Ok(None));
        assert_eq!(memory.allocate(128), Ok(Some(128)));
        assert_eq!(memory.num_allocated(), 480);
        for columns in [0, 16, 48, 1024] {
            assert!(memory.allocate(columns).is_err(), "{columns}");
        }
        assert!(memory.deallocate(64, 64).is_err());
        memory.deallocate(256, 256).expect("an allocation");
        assert_eq!(memory.allocate(256), Ok(Some(256)));
        memory.relinquish();
        assert!(memory.allocate(32).is_err());
    }

    #[test]
    fn cells_record_whether_they_were_written() {
        let mut memory = TensorMemory::new();
        assert!(memory.read(0, 0).is_err() && memory.write(0, 0, 1).is_err());
        memory.allocate(32).expect("room");
        assert_eq!(memory.read(127, 31), Ok(None));
        memory.write(127, 31, 5).expect("allocated");
        assert_eq!(memory.read(127, 31), Ok(Some(5)));
        assert!(memory.read(127, 32).is_err() && memory.read(128, 0).is_err());

        assert!(memory.read_tile(112, 24).expect_err("unwritten").contains("lane 112, column 24"));
        memory.write_tile(112, 24, &[[7; 8]; 16], 1 << 120).expect("allocated");
        assert!(memory.read_tile(112, 24).expect_err("unwritten").contains("lane 120, column 24"));
        memory.write_tile(112, 24, &[[7; 8]; 16], 0).expect("allocated");
        assert_eq!(memory.read_tile(112, 24), Ok([[7; 8]; 16]));
        assert!(memory.read_tile(113, 24).is_err());

        memory.deallocate(0, 32).expect("an allocation");
        memory.allocate(32).expect("room");
        assert_eq!(memory.read(127, 31), Ok(None));
    }
}
