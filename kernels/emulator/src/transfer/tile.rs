//! The boxes that tensor copies move: which bytes of global memory go to which bytes of shared memory.
//! PTX ISA 9.0, section 5.5.3.
//!
//! A box lies at signed element coordinates and may reach outside the tensor. Its rows follow each other in
//! shared memory, dimension 1 the fastest; element strides thin out dimensions 1 to 4. Nothing here reads or
//! writes memory.

use super::tensor_map::{TensorMap, TensorMapError};

/// How an instruction names the box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `.tile`: one box, one coordinate for each dimension.
    Tile,
    /// `.tile::gather4` and `.tile::scatter4`: four rows, coordinates `{x, row0, row1, row2, row3}`.
    Rows4,
}

/// Contiguous bytes of one row, wholly inside or wholly outside the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Global address; `None` outside the tensor, where loads write the fill and stores do nothing.
    pub global: Option<u64>,
    /// Offset in bytes from the start of the tile in shared memory, before the swizzle.
    pub offset: u32,
    /// Bytes.
    pub bytes: u32,
}

/// Bytes contiguous on both sides, wholly inside or wholly outside the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Global address; `None` outside the tensor, where loads write the fill and stores do nothing.
    pub global: Option<u64>,
    /// Address in shared memory, after the swizzle.
    pub shared: u32,
    /// Bytes.
    pub bytes: u32,
}

type Result<T> = std::result::Result<T, TensorMapError>;

/// Alignment of a tile in shared memory, in bytes.
pub const SHARED_ALIGNMENT: u32 = 128;
/// Elements in a group of a padded element type.
const GROUP: u32 = 16;

impl TensorMap {
    /// Bytes that one access moves and that its mbarrier counts: the whole box, what lies outside the tensor
    /// included, the padding of padded elements not.
    pub fn box_bytes(&self, access: Access) -> u32 {
        self.rows(access) * (self.box_dims[0] * self.element.bits() / 8)
    }

    /// Bytes that one access spans in shared memory, padding included.
    pub fn shared_bytes(&self, access: Access) -> u32 {
        self.rows(access) * self.row_bytes()
    }

    /// Visits the runs of a box, in order of their offsets.
    ///
    /// Errors: a wrong number of coordinates, `Rows4` on a map that does not describe rows, sub-byte
    /// elements from inside a byte or a group.
    pub fn for_each_run(
        &self,
        access: Access,
        coordinates: &[i32],
        mut visit: impl FnMut(Run),
    ) -> Result<()> {
        self.check_access(access, coordinates)?;
        let mut index = [0; 5];
        for row in 0..self.rows(access) {
            let offset = row * self.row_bytes();
            match access {
                Access::Rows4 => {
                    let y = i64::from(coordinates[1 + row as usize]);
                    self.visit_row(coordinates[0], &[y], offset, &mut visit);
                }
                Access::Tile => {
                    let outer = &mut index[..self.rank as usize - 1];
                    let position: [i64; 5] = std::array::from_fn(|i| match outer.get(i) {
                        Some(&step) => {
                            i64::from(coordinates[i + 1]) + i64::from(step * self.element_strides[i + 1])
                        }
                        None => 0,
                    });
                    self.visit_row(coordinates[0], &position[..outer.len()], offset, &mut visit);
                    for (i, step) in outer.iter_mut().enumerate() {
                        *step += 1;
                        if *step < self.steps(i + 1) {
                            break;
                        }
                        *step = 0;
                    }
                }
            }
        }
        Ok(())
    }

    /// Visits the chunks of a box whose tile starts at the shared address `shared_base`. A chunk holds at
    /// most one unit of the swizzle, or a whole run without a swizzle.
    ///
    /// Errors: those of [`TensorMap::for_each_run`]; a shared address that is not a multiple of 128.
    pub fn for_each_chunk(
        &self,
        access: Access,
        coordinates: &[i32],
        shared_base: u32,
        mut visit: impl FnMut(Chunk),
    ) -> Result<()> {
        if !shared_base.is_multiple_of(SHARED_ALIGNMENT) {
            return Err(misaligned("shared address", None, i64::from(shared_base), SHARED_ALIGNMENT));
        }
        let unit = self.swizzle.unit_bytes();
        self.for_each_run(access, coordinates, |run| {
            let mut done = 0;
            while done < run.bytes {
                let address = shared_base.wrapping_add(run.offset + done);
                let left = run.bytes - done;
                let bytes = unit.map_or(left, |unit| left.min(unit - address % unit));
                let global = run.global.map(|global| global.wrapping_add(u64::from(done)));
                visit(Chunk { global, shared: self.swizzle.apply(address), bytes });
                done += bytes;
            }
        })
    }

    fn check_access(&self, access: Access, coordinates: &[i32]) -> Result<()> {
        let expected = match access {
            Access::Tile => self.rank as usize,
            Access::Rows4 => 5,
        };
        if coordinates.len() != expected {
            return Err(TensorMapError::Coordinates { expected, got: coordinates.len() });
        }
        if access == Access::Rows4 && (self.rank != 2 || self.box_dims[1] != 1) {
            return Err(TensorMapError::NotRows { rank: self.rank, rows: self.box_dims[1] });
        }
        let multiple = match self.element.bits() {
            _ if self.element.is_padded() => GROUP,
            4 => 2,
            _ => 1,
        };
        let x = i64::from(coordinates[0]);
        if x.rem_euclid(i64::from(multiple)) == 0 {
            Ok(())
        } else {
            Err(misaligned("coordinate", Some(0), x, multiple))
        }
    }

    /// Bytes of one row in shared memory.
    fn row_bytes(&self) -> u32 {
        self.box_dims[0] * self.element.shared_bits() / 8
    }

    /// Elements that the box takes from an outer dimension.
    fn steps(&self, dimension: usize) -> u32 {
        self.box_dims[dimension].div_ceil(self.element_strides[dimension])
    }

    fn rows(&self, access: Access) -> u32 {
        match access {
            Access::Tile => (1..self.rank as usize).map(|dimension| self.steps(dimension)).product(),
            Access::Rows4 => 4,
        }
    }

    /// Visits the runs of the row at `x` and the positions `outer` in dimensions 1 and above.
    fn visit_row(&self, x: i32, outer: &[i64], offset: u32, visit: &mut impl FnMut(Run)) {
        let mut base = self.address;
        let mut inside = true;
        for (i, &position) in outer.iter().enumerate() {
            inside &= (0..self.dims[i + 1] as i64).contains(&position);
            base = base.wrapping_add(self.strides_bytes[i].wrapping_mul(position as u64));
        }
        let (x, width) = (i64::from(x), i64::from(self.box_dims[0]));
        let first = if inside { (-x).clamp(0, width) } else { width };
        let last = if inside { (self.dims[0] as i64 - x).clamp(first, width) } else { width };
        for (start, end, inside) in [(0, first, false), (first, last, true), (last, width, false)] {
            let global =
                inside.then(|| base.wrapping_add(((x + start) * i64::from(self.element.bits()) / 8) as u64));
            self.visit_segment(global, start as u32, end as u32, offset, visit);
        }
    }

    /// Visits elements `start..end` of a row; `global` is the address of the first one.
    fn visit_segment(
        &self,
        global: Option<u64>,
        start: u32,
        end: u32,
        offset: u32,
        visit: &mut impl FnMut(Run),
    ) {
        let bytes = |elements: u32| elements * self.element.bits() / 8;
        if start == end {
            return;
        }
        if !self.element.is_padded() {
            return visit(Run { global, offset: offset + bytes(start), bytes: bytes(end - start) });
        }
        for group in (start..end).step_by(GROUP as usize) {
            let global = global.map(|global| global.wrapping_add(u64::from(bytes(group - start))));
            visit(Run { global, offset: offset + group, bytes: bytes(GROUP) });
        }
    }
}

fn misaligned(what: &'static str, dimension: Option<usize>, value: i64, multiple: u32) -> TensorMapError {
    TensorMapError::Misaligned { what, dimension, value, multiple: u64::from(multiple) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::tensor_map::{Element, Fill, Swizzle};
    use std::collections::BTreeMap;

    /// xorshift64 (G. Marsaglia, 2003).
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }

        fn pick<T: Copy>(&mut self, from: &[T]) -> T {
            from[self.below(from.len() as u64) as usize]
        }
    }

    /// For every half byte of shared memory that the box reaches: the half byte of global memory, or `None`
    /// outside. Elements one by one, from the definition; `position` gives the outer coordinates of a row.
    fn by_definition(map: &TensorMap, base: u32, x: i64, rows: &[Vec<i64>]) -> BTreeMap<u64, Option<u64>> {
        let nibbles = u64::from(map.element.bits() / 4).max(1);
        let mut result = BTreeMap::new();
        for (row, outer) in rows.iter().enumerate() {
            for e in 0..u64::from(map.box_dims[0]) {
                let column = x + e as i64;
                let mut inside = column >= 0 && column < map.dims[0] as i64;
                let mut global = 2 * map.address as i64 + column * nibbles as i64;
                for (i, &at) in outer.iter().enumerate() {
                    inside &= at >= 0 && at < map.dims[i + 1] as i64;
                    global += 2 * at * map.strides_bytes[i] as i64;
                }
                let in_row =
                    if map.element == Element::B4x16P64 { e / 16 * 32 + e % 16 } else { e * nibbles };
                let row_nibbles = u64::from(map.box_dims[0] * map.element.shared_bits() / 4);
                for part in 0..nibbles {
                    let linear = row as u64 * row_nibbles + in_row + part;
                    let byte = base + (linear / 2) as u32;
                    let place = 2 * u64::from(map.swizzle.apply(byte)) + linear % 2;
                    let old = result.insert(place, inside.then_some(global as u64 + part));
                    assert_eq!(old, None, "two elements in one place");
                }
            }
        }
        result
    }

    fn by_chunks(
        map: &TensorMap,
        access: Access,
        base: u32,
        coordinates: &[i32],
    ) -> BTreeMap<u64, Option<u64>> {
        let mut result = BTreeMap::new();
        map.for_each_chunk(access, coordinates, base, |chunk| {
            for i in 0..2 * u64::from(chunk.bytes) {
                let global = chunk.global.map(|global| 2 * global + i);
                assert_eq!(result.insert(2 * u64::from(chunk.shared) + i, global), None);
            }
        })
        .unwrap();
        result
    }

    fn random_map(random: &mut Random) -> TensorMap {
        use Element::*;
        let element = random.pick(&[U8, U16, F32, F64, Bf16, B4x16, B4x16P64]);
        let swizzles = [Swizzle::None, Swizzle::B128, Swizzle::B128Atom32];
        let more = [Swizzle::B32, Swizzle::B64, Swizzle::B128Atom32Flip8, Swizzle::B128Atom64];
        let padded = element.is_padded();
        let swizzle =
            if padded || random.below(2) == 0 { random.pick(&swizzles) } else { random.pick(&more) };
        let rank = 1 + random.below(5) as u32;
        let mut map = TensorMap {
            element,
            rank,
            address: 0x10000,
            dims: [0; 5],
            strides_bytes: [0; 4],
            box_dims: [0; 5],
            element_strides: [0; 5],
            swizzle,
            fill: Fill::Zero,
        };
        for i in 0..rank as usize {
            map.dims[i] = 1 + random.below(20);
            map.box_dims[i] = 1 + random.below(5) as u32;
            map.element_strides[i] = 1 + random.below(3) as u32;
        }
        let units = swizzle.width_bytes().unwrap_or(160) / 16;
        map.box_dims[0] =
            ((1 + random.below(u64::from(units)) as u32) * 128 / element.shared_bits()).min(256);
        map.dims[0] = 2 * (1 + random.below(100));
        if padded {
            map.box_dims[0] = 128;
            map.dims[0] = 128 * (1 + random.below(2));
        }
        let mut stride = 0x100;
        for i in 0..rank as usize - 1 {
            map.strides_bytes[i] = stride;
            stride *= map.dims[i + 1] + random.below(2);
        }
        map
    }

    #[test]
    fn boxes_land_where_the_definition_says() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let (mut inside, mut outside) = (0, 0);
        for _ in 0..400 {
            let map = random_map(&mut random);
            map.encode().unwrap_or_else(|error| panic!("{error}: {map:?}"));
            let step = if map.element.is_padded() { 16 } else { 2 };
            let mut coordinates = vec![(random.below(24) as i32 - 8) * step];
            for i in 1..map.rank as usize {
                coordinates.push(random.below(map.dims[i] + 4) as i32 - 3);
            }
            let base = 128 * random.below(9) as u32;
            let mut rows = vec![vec![]];
            for i in (1..map.rank as usize).rev() {
                let mut next = Vec::new();
                for outer in &rows {
                    for at in (0..map.box_dims[i]).step_by(map.element_strides[i] as usize) {
                        let mut row = vec![i64::from(coordinates[i]) + i64::from(at)];
                        row.extend(outer);
                        next.push(row);
                    }
                }
                rows = next;
            }
            let expected = by_definition(&map, base, i64::from(coordinates[0]), &rows);
            let got = by_chunks(&map, Access::Tile, base, &coordinates);
            assert_eq!(got, expected, "{map:?} at {coordinates:?}");
            assert_eq!(got.len() as u32, 2 * map.box_bytes(Access::Tile));
            inside += got.values().flatten().count();
            outside += got.values().filter(|global| global.is_none()).count();
        }
        assert!(inside > 50_000 && outside > 50_000, "{inside} inside, {outside} outside");
    }

    #[test]
    fn four_rows_follow_each_other() {
        let map = TensorMap {
            element: Element::Bf16,
            rank: 2,
            address: 0x4000,
            dims: [128, 50, 0, 0, 0],
            strides_bytes: [256, 0, 0, 0],
            box_dims: [64, 1, 0, 0, 0],
            element_strides: [1, 1, 0, 0, 0],
            swizzle: Swizzle::B128,
            fill: Fill::Zero,
        };
        let coordinates = [96, 3, -1, 49, 50];
        let rows: Vec<_> = coordinates[1..].iter().map(|&row| vec![i64::from(row)]).collect();
        let expected = by_definition(&map, 0x280, 96, &rows);
        assert_eq!(by_chunks(&map, Access::Rows4, 0x280, &coordinates), expected);
        assert_eq!((map.box_bytes(Access::Rows4), map.shared_bytes(Access::Rows4)), (512, 512));
        let mut runs = Vec::new();
        map.for_each_run(Access::Rows4, &coordinates, |run| runs.push(run)).unwrap();
        let run = |global, offset, bytes| Run { global, offset, bytes };
        let expected = [
            run(Some(0x4000 + 3 * 256 + 192), 0, 64),
            run(None, 64, 64),
            run(None, 128, 128),
            run(Some(0x4000 + 49 * 256 + 192), 256, 64),
            run(None, 320, 64),
            run(None, 384, 128),
        ];
        assert_eq!(runs, expected);
        let tall = TensorMap { box_dims: [64, 2, 0, 0, 0], ..map };
        let result = tall.for_each_run(Access::Rows4, &coordinates, |_| ());
        assert_eq!(result, Err(TensorMapError::NotRows { rank: 2, rows: 2 }));
    }

    #[test]
    fn six_bit_groups_take_sixteen_bytes() {
        let map = TensorMap {
            element: Element::B6x16P32,
            rank: 1,
            address: 0x1000,
            dims: [256, 0, 0, 0, 0],
            strides_bytes: [0; 4],
            box_dims: [128, 0, 0, 0, 0],
            element_strides: [1, 0, 0, 0, 0],
            swizzle: Swizzle::None,
            fill: Fill::Zero,
        };
        let mut chunks = Vec::new();
        map.for_each_chunk(Access::Tile, &[144], 0x400, |chunk| chunks.push(chunk)).unwrap();
        let chunk = |group: u32| Chunk {
            global: (group < 7).then(|| 0x1000 + u64::from(9 + group) * 12),
            shared: 0x400 + group * 16,
            bytes: 12,
        };
        assert_eq!(chunks, (0..8).map(chunk).collect::<Vec<_>>());
        assert_eq!((map.box_bytes(Access::Tile), map.shared_bytes(Access::Tile)), (96, 128));
        assert_eq!(map.check_store(), Err(TensorMapError::LoadOnly(Element::B6x16P32)));
    }

    #[test]
    fn accesses_that_cannot_be_are_refused() {
        let mut map = random_map(&mut Random(1));
        map.element = Element::B4x16;
        let count = TensorMapError::Coordinates { expected: map.rank as usize, got: 6 };
        assert_eq!(map.for_each_run(Access::Tile, &[0; 6], |_| ()), Err(count));
        let mut odd = vec![-1];
        odd.resize(map.rank as usize, 0);
        let error = map.for_each_run(Access::Tile, &odd, |_| ()).unwrap_err();
        assert_eq!(error.to_string(), "tensor map coordinate of dimension 0 is -1, not a multiple of 2");
        odd[0] = 0;
        let error = map.for_each_chunk(Access::Tile, &odd, 64, |_| ()).unwrap_err();
        assert_eq!(error.to_string(), "tensor map shared address is 64, not a multiple of 128");
    }
}
