//! The table of measurements in the folder of the kernel cache: one JSON file for each GPU, driver and set of programs.
//!
//! A file that is absent, unreadable, cut, too long, of another schema or of another identity is as if there were none; it
//! costs a tuning. It can make nothing wrong: it names variants that ship, all of which give the same bits. Several
//! processes may write one; the last complete file stays.
//!
//! Functions with which the device was lost are in it too: CUDA has a process that lost its device end, so each start would
//! run them again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::candidate::Candidate;
use super::measurement::Measurement;
use super::op::TunedOp;

/// Version of the file and of what a measurement means.
const SCHEMA: u32 = 4;
/// Folder below the kernel cache.
const FOLDER: &str = "tuning";
const SUFFIX: &str = ".json";
const UNFINISHED_SUFFIX: &str = ".partial";
/// Most bytes of a file that are read. A measurement takes about one kilobyte.
const MAX_BYTES: u64 = 4 << 20;
/// Most measurements of a file; the oldest ones make room. Some thirty models have them.
const MAX_MEASUREMENTS: usize = 1024;
/// Most files; the oldest ones make room.
const MAX_FILES: usize = 32;
/// Age after which an unfinished file was left by a process that ended.
const UNFINISHED_AGE: Duration = Duration::from_secs(3600);

/// What measurements are valid for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Product name.
    pub gpu: String,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Highest clock of the memory, MHz; `None`: not known.
    pub memory_clock_mhz: Option<u32>,
    /// Power limit, watts; `None`: not known.
    pub power_limit_w: Option<u32>,
    /// Major and minor version of the driver.
    pub driver: String,
    /// Hash of the compiled programs of all variants.
    pub programs: String,
}

impl Identity {
    /// A hash for [`Identity::programs`].
    pub fn hash_of(programs: &[&[u8]]) -> String {
        let mut hasher = blake3::Hasher::new();
        for program in programs {
            hasher.update(&(program.len() as u64).to_le_bytes());
            hasher.update(program);
        }
        hasher.finalize().to_hex()[..32].to_owned()
    }

    fn path(&self, cache_dir: &Path) -> PathBuf {
        let text = serde_json::to_vec(&(SCHEMA, self)).unwrap_or_default();
        cache_dir.join(FOLDER).join(format!("{}{SUFFIX}", &blake3::hash(&text).to_hex()[..16]))
    }
}

/// A function with which the device was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lost {
    /// Name of the function in its program.
    pub function: String,
    /// The device's error.
    pub reason: String,
}

/// Measurements on one GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    schema: u32,
    /// What they are valid for.
    pub identity: Identity,
    /// What is not run again.
    pub lost: Vec<Lost>,
    /// One of each op at most.
    pub measurements: Vec<Measurement>,
    /// Ops that a start had no time for: the next ones do not try again, which would take the same time at each of them.
    pub left: Vec<TunedOp>,
}

impl Table {
    /// A table without measurements.
    pub fn new(identity: Identity) -> Self {
        Self { schema: SCHEMA, identity, lost: Vec::new(), measurements: Vec::new(), left: Vec::new() }
    }

    /// The table in the kernel cache; one without measurements if there is none that can be used.
    pub fn load(cache_dir: &Path, identity: Identity) -> Self {
        let path = identity.path(cache_dir);
        match read(&path) {
            Ok(Some(table)) if table.identity == identity => table,
            Ok(None) => Self::new(identity),
            Ok(Some(_)) => {
                tracing::warn!("{} is a table of another GPU and is not used", path.display());
                Self::new(identity)
            }
            Err(reason) => {
                tracing::warn!("{} is not used: {reason}", path.display());
                Self::new(identity)
            }
        }
    }

    /// All tables in the kernel cache that can be used somewhere.
    pub fn list(cache_dir: &Path) -> Vec<Self> {
        let mut paths: Vec<PathBuf> = files(&cache_dir.join(FOLDER)).map(|(path, _)| path).collect();
        paths.retain(|path| file_name(path).ends_with(SUFFIX));
        paths.sort();
        paths.iter().filter_map(|path| read(path).ok().flatten()).collect()
    }

    /// The measurement of an op.
    pub fn get(&self, op: &TunedOp) -> Option<&Measurement> {
        self.measurements.iter().find(|measurement| measurement.op == *op)
    }

    /// Whether a start is to measure an op, with `vendor` also the vendor's product: nobody has, and no start was too short for it.
    pub fn wants(&self, op: &TunedOp, vendor: bool) -> bool {
        let measured =
            |measurement: &Measurement| measurement.vendor.is_some() || !vendor || !op.may_be_the_vendors();
        !self.get(op).is_some_and(measured) && !self.left.contains(op)
    }

    /// Notes those of the ops that have no measurement as left; the oldest of too many are forgotten.
    pub fn leave(&mut self, ops: &[TunedOp], vendor: bool) {
        for op in ops {
            if self.wants(op, vendor) {
                self.left.push(*op);
            }
        }
        let excess = self.left.len().saturating_sub(MAX_MEASUREMENTS);
        self.left.drain(..excess);
    }

    /// Adds measurements in place of those of the same ops.
    pub fn add(&mut self, measurements: Vec<Measurement>) {
        self.left.retain(|left| measurements.iter().all(|new| new.op != *left));
        self.measurements.retain(|old| measurements.iter().all(|new| new.op != old.op));
        self.measurements.extend(measurements);
        let excess = self.measurements.len().saturating_sub(MAX_MEASUREMENTS);
        self.measurements.drain(..excess);
    }

    /// Notes that the device was lost with a function. Measurements that it is a part of are dropped.
    pub fn lose(&mut self, function: &str, reason: String) {
        let lost = Lost { function: function.into(), reason };
        let without = |op: &TunedOp| Candidate::shipped(op).iter().all(|part| part.function != lost.function);
        self.measurements.retain(|measurement| without(&measurement.op));
        self.lost.push(lost);
    }

    /// Writes the table into the kernel cache. Errors: the reason with the path.
    pub fn save(&self, cache_dir: &Path) -> Result<PathBuf, String> {
        let path = self.identity.path(cache_dir);
        self.write(&path).map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
        Ok(path)
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let dir = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(dir)?;
        sweep(dir, path);
        let text = serde_json::to_vec_pretty(self)?;
        // Not the process's number: in containers that share the directory it is 1.
        let unfinished =
            dir.join(format!(".{}.{:016x}{UNFINISHED_SUFFIX}", file_name(path), fastrand::u64(..)));
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).open(&unfinished)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&unfinished, path)
        };
        let written = write();
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written?;
        // The rename is on the disk only with the folder. Without it a crash loses the table, nothing more.
        let _ = File::open(dir).and_then(|dir| dir.sync_all());
        Ok(())
    }
}

/// A file of this schema; `None`: there is none.
fn read(path: &Path) -> Result<Option<Table>, String> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_file() => {}
        Ok(_) => return Err("it is not a file".into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    }
    let mut bytes = Vec::new();
    let file = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    file.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("it is longer than {MAX_BYTES} bytes"));
    }
    let table: Table = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if table.schema != SCHEMA {
        return Err(format!("its schema is {}, this version's is {SCHEMA}", table.schema));
    }
    if table.measurements.len().max(table.left.len()) > MAX_MEASUREMENTS
        || !table.measurements.iter().all(Measurement::is_sound)
    {
        return Err("its measurements cannot be right".into());
    }
    Ok(Some(table))
}

/// Deletes what processes that ended left unfinished, and the oldest tables beside `keep`.
fn sweep(dir: &Path, keep: &Path) {
    let mut tables: Vec<(SystemTime, PathBuf)> = Vec::new();
    for (path, modified) in files(dir) {
        let old = modified.elapsed().is_ok_and(|age| age > UNFINISHED_AGE);
        if file_name(&path).ends_with(UNFINISHED_SUFFIX) && old {
            let _ = fs::remove_file(&path);
        } else if file_name(&path).ends_with(SUFFIX) && path != keep {
            tables.push((modified, path));
        }
    }
    tables.sort();
    let excess = (tables.len() + 1).saturating_sub(MAX_FILES);
    for (_, path) in tables.drain(..excess) {
        let _ = fs::remove_file(path);
    }
}

/// Files of a folder with their times; none if it cannot be read.
fn files(dir: &Path) -> impl Iterator<Item = (PathBuf, SystemTime)> + use<> {
    let entries = fs::read_dir(dir).ok().into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let meta = entry.metadata().ok()?;
        meta.is_file().then(|| (entry.path(), meta.modified().unwrap_or(SystemTime::UNIX_EPOCH)))
    })
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::measurement::Tried;
    use super::super::measurement::tests::measurement;
    use super::super::op::{Bucket, Product};
    use super::*;
    use crate::weights::Format;

    fn identity() -> Identity {
        Identity {
            gpu: "Made-up GPU".into(),
            multiprocessors: 4,
            memory_clock_mhz: None,
            power_limit_w: Some(700),
            driver: "580.65".into(),
            programs: Identity::hash_of(&[b"a", b"b"]),
        }
    }

    fn table() -> Table {
        let mut table = Table::new(identity());
        let times = [("split16x8", 1.25), ("split32x8", 2.5)];
        table.add(vec![
            measurement(Product::Linear, &times, &["block32x48"]),
            measurement(Product::Swiglu, &times, &[]),
        ]);
        table
    }

    #[test]
    fn a_table_is_read_back_and_extended() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Table::load(dir.path(), identity()), Table::new(identity()));
        table().save(dir.path()).unwrap();
        let mut read = Table::load(dir.path(), identity());
        assert_eq!(read, table());
        let newer = measurement(Product::Linear, &[("split16x8", 3.0)], &[]);
        read.add(vec![newer.clone()]);
        assert_eq!((read.measurements.len(), read.get(&newer.op)), (2, Some(&newer)));
        read.save(dir.path()).unwrap();
        assert_eq!(Table::list(dir.path()), [read]);
        let names: Vec<_> = fs::read_dir(dir.path().join(FOLDER)).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }

    #[test]
    fn what_a_start_had_no_time_for_is_not_tried_by_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut table = table();
        let measured = table.measurements[0].op;
        let left = TunedOp { out_features: measured.out_features + 16, ..measured };
        assert!(table.wants(&left, false) && !table.wants(&measured, true));
        table.leave(&[measured, left], false);
        table.leave(&[left], false);
        table.save(dir.path()).unwrap();
        let mut read = Table::load(dir.path(), identity());
        assert_eq!(read.left, [left]);
        assert!(!read.wants(&left, false) && read.wants(&TunedOp { out_features: 8, ..left }, false));
        // `perigee tune` measures it.
        read.add(vec![Measurement { op: left, ..measurement(Product::Linear, &[("split16x8", 3.0)], &[]) }]);
        assert_eq!((read.left.len(), read.get(&left).is_some()), (0, true));
    }

    #[test]
    fn an_op_is_measured_again_where_the_vendors_product_may_be_used_and_was_not_tried() {
        let mut table = table();
        let (rows, format, count) = (Bucket::Above, Format::Bf16, 1);
        let op = TunedOp { rows, format, count, ..table.measurements[0].op };
        let mut one = Measurement { op, ..measurement(Product::Linear, &[("split16x8", 3.0)], &[]) };
        table.add(vec![one.clone()]);
        assert!(table.wants(&op, true) && !table.wants(&op, false));
        one.vendor = Some(Tried { variant: "cuBLASLt".into(), micros: Some(1.0), refused: None });
        table.add(vec![one]);
        assert!(!table.wants(&op, true));
    }

    #[test]
    fn a_function_that_lost_the_device_is_left_out_from_then_on() {
        let dir = tempfile::tempdir().unwrap();
        let mut lossy = table();
        let [linear, swiglu] = [0, 1].map(|at| lossy.measurements[at].op);
        let function = Candidate::shipped(&linear)[1].function;
        lossy.lose(function, "code 700".into());
        assert_eq!((lossy.get(&linear), lossy.get(&swiglu).is_some()), (None, true));
        lossy.save(dir.path()).unwrap();
        let read = Table::load(dir.path(), identity());
        assert_eq!(read, lossy);
        let usable = |op: &TunedOp| {
            Candidate::shipped(op).iter().map(|one| one.is_usable(&read.lost)).collect::<Vec<_>>()
        };
        let unusable: Vec<usize> =
            usable(&linear).iter().enumerate().filter(|(_, usable)| !**usable).map(|(at, _)| at).collect();
        assert_eq!(unusable, [1]);
        assert!(!usable(&swiglu).contains(&false));
    }

    #[test]
    fn another_gpu_driver_or_program_has_another_table() {
        let dir = tempfile::tempdir().unwrap();
        let path = table().save(dir.path()).unwrap();
        let mut others = vec![identity(); 6];
        others[0].gpu.push('x');
        others[1].multiprocessors += 1;
        others[2].memory_clock_mhz = Some(2619);
        others[3].power_limit_w = Some(600);
        others[4].driver = "581.10".into();
        others[5].programs = Identity::hash_of(&[b"ab", b""]);
        for other in others {
            assert!(Table::load(dir.path(), other.clone()).measurements.is_empty(), "{other:?}");
            // A file under the name of another one is not believed.
            let place = other.path(dir.path());
            fs::copy(&path, &place).unwrap();
            assert!(Table::load(dir.path(), other.clone()).measurements.is_empty(), "{other:?}");
        }
    }

    #[test]
    fn a_wrong_file_is_as_if_there_were_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = table().save(dir.path()).unwrap();
        let good = fs::read(&path).unwrap();
        let text = String::from_utf8(good.clone()).unwrap();
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            assert!(Table::load(dir.path(), identity()).measurements.is_empty());
            assert!(Table::list(dir.path()).is_empty());
        };
        for length in 0..good.len() {
            refused(&good[..length]);
        }
        let changed = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            refused(text.replacen(from, to, 1).as_bytes());
        };
        changed("\"schema\": 4", "\"schema\": 3");
        changed("1.25", "-1.25");
        changed("1.25", "1e999");
        changed("\"micros\": 1.25", "\"micros\": null");
        changed("\"linear\"", "\"other\"");
        changed("\"copy_bandwidth\"", "\"bandwidth\"");
        refused(b"\0\xff\xfe");
        refused(&vec![b' '; MAX_BYTES as usize + 1]);
        // Damaged at random: never a crash.
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..1000 {
            let mut damaged = good.clone();
            let at = rng.usize(..damaged.len());
            damaged[at] = rng.u8(..);
            fs::write(&path, damaged).unwrap();
            let _ = Table::load(dir.path(), identity());
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(Table::load(dir.path(), identity()).measurements.is_empty());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        // A file in place of the folder: refused for every user, root included.
        fs::write(dir.path().join(FOLDER), "").unwrap();
        let error = table().save(dir.path()).unwrap_err();
        assert!(error.contains("tuning") && error.contains("cannot be written"), "{error}");
        assert!(Table::load(dir.path(), identity()).measurements.is_empty());
        fs::remove_file(dir.path().join(FOLDER)).unwrap();
        table().save(dir.path()).unwrap();
        let folder = dir.path().join(FOLDER);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
        // Root may write all the same; what is there is read in either case.
        let _ = table().save(dir.path());
        assert_eq!(Table::load(dir.path(), identity()), table());
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn files_and_measurements_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        for driver in 0..MAX_FILES + 5 {
            let identity = Identity { driver: format!("{driver}.0"), ..identity() };
            Table::new(identity).save(dir.path()).unwrap();
        }
        assert_eq!(Table::list(dir.path()).len(), MAX_FILES);
        let mut table = Table::new(identity());
        let one = measurement(Product::Linear, &[("split16x8", 1.0)], &[]);
        for count in 0..MAX_MEASUREMENTS + 5 {
            let mut other = one.clone();
            other.op.count = count;
            table.add(vec![other]);
        }
        assert_eq!((table.measurements.len(), table.measurements[0].op.count), (MAX_MEASUREMENTS, 5));
        table.save(dir.path()).unwrap();
        assert_eq!(Table::load(dir.path(), identity()), table, "the largest table is read");
    }
}
