//! Bounded-exhaustive sequences of operations (ACE: Mohan et al., CrashMonkey, OSDI 2018): every sequence of one or two
//! operations on a small set of files, each followed by every call that makes data durable, with a power cut at every
//! flush.
//!
//! The set is fixed: directories `A` and `B`, files `foo` and `A/foo` with data, and the names `bar`, `A/bar`, `B/bar`,
//! `C`. Sequences that POSIX refuses are not counted. Direct writes are large ones, which bypass the cache; writes
//! through a mapping are whole aligned blocks, as the kernel sends them.

use moafs_disk::probe::crash::Mode;
use moafs_vfs::api::{Allocate, RenameMode};
use moafs_vfs::types::SetMode;

use crate::crash::Recording;
use crate::family::Family;
use crate::image::Geometry;
use crate::model::{Model, NodeId};
use crate::ops::{Bytes, Op};

/// A named function that makes an operation.
type Template = (&'static str, fn(&Model) -> Option<Op>);

fn node(model: &Model, path: &str) -> Option<NodeId> {
    path.split('/')
        .filter(|name| !name.is_empty())
        .try_fold(NodeId::ROOT, |at, name| model.node(at).entries.get(name.as_bytes()).copied())
}

/// Returns the directory and the last name of a path.
fn slot(model: &Model, path: &str) -> Option<(NodeId, Bytes)> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    Some((node(model, dir)?, name.into()))
}

fn create(model: &Model, path: &str) -> Option<Op> {
    let (dir, name) = slot(model, path)?;
    Some(Op::create(dir, std::str::from_utf8(&name).ok()?))
}

fn mkdir(model: &Model, path: &str) -> Option<Op> {
    let (dir, name) = slot(model, path)?;
    Some(Op::mkdir(dir, std::str::from_utf8(&name).ok()?))
}

fn write(model: &Model, path: &str, offset: u64, len: usize, append: bool) -> Option<Op> {
    Some(Op::Write { node: node(model, path)?, offset, len, append })
}

fn allocate(model: &Model, path: &str, offset: u64, len: u64, how: Allocate) -> Option<Op> {
    Some(Op::Allocate { node: node(model, path)?, offset, len, how })
}

fn link(model: &Model, from: &str, to: &str) -> Option<Op> {
    let (dir, name) = slot(model, to)?;
    Some(Op::Link { node: node(model, from)?, dir, name })
}

fn unlink(model: &Model, path: &str) -> Option<Op> {
    let (dir, name) = slot(model, path)?;
    Some(Op::Unlink { dir, name })
}

fn rmdir(model: &Model, path: &str) -> Option<Op> {
    let (dir, name) = slot(model, path)?;
    Some(Op::Rmdir { dir, name })
}

fn rename(model: &Model, from: &str, to: &str, mode: RenameMode) -> Option<Op> {
    Some(Op::Rename { from: slot(model, from)?, to: slot(model, to)?, mode })
}

fn truncate(model: &Model, path: &str, size: u64) -> Option<Op> {
    Some(Op::Truncate { node: node(model, path)?, size })
}

fn set_xattr(model: &Model, path: &str) -> Option<Op> {
    Some(Op::SetXattr { node: node(model, path)?, name: b"user.ace".to_vec(), len: 40, mode: SetMode::Any })
}

fn fsync(model: &Model, path: &str, data_only: bool) -> Option<Op> {
    Some(Op::Fsync { node: node(model, path)?, data_only })
}

/// The operations.
const OPERATIONS: &[Template] = &[
    ("creat bar", |m| create(m, "bar")),
    ("creat A/bar", |m| create(m, "A/bar")),
    ("mkdir C", |m| mkdir(m, "C")),
    ("mkdir A/C", |m| mkdir(m, "A/C")),
    ("falloc foo", |m| allocate(m, "foo", 8192, 8192, Allocate::Extend)),
    ("falloc -k A/foo", |m| allocate(m, "A/foo", 0, 8192, Allocate::KeepSize)),
    ("punch foo", |m| allocate(m, "foo", 4096, 4096, Allocate::Punch)),
    ("zero A/foo", |m| allocate(m, "A/foo", 1000, 5000, Allocate::Zero { keep_size: true })),
    ("append foo", |m| write(m, "foo", 0, 5000, true)),
    ("append A/foo", |m| write(m, "A/foo", 0, 300, true)),
    ("overwrite foo", |m| write(m, "foo", 100, 5000, false)),
    ("sparse foo", |m| write(m, "foo", 400_000, 1000, false)),
    ("dwrite A/foo", |m| write(m, "A/foo", 0, 256 << 10, false)),
    ("mwrite foo", |m| write(m, "foo", 4096, 4096, false)),
    ("link foo bar", |m| link(m, "foo", "bar")),
    ("link foo A/bar", |m| link(m, "foo", "A/bar")),
    ("link A/foo B/bar", |m| link(m, "A/foo", "B/bar")),
    ("unlink foo", |m| unlink(m, "foo")),
    ("unlink A/foo", |m| unlink(m, "A/foo")),
    ("unlink bar", |m| unlink(m, "bar")),
    ("rmdir B", |m| rmdir(m, "B")),
    ("rmdir C", |m| rmdir(m, "C")),
    ("rename foo bar", |m| rename(m, "foo", "bar", RenameMode::Replace)),
    ("rename foo A/foo", |m| rename(m, "foo", "A/foo", RenameMode::Replace)),
    ("rename A/foo bar", |m| rename(m, "A/foo", "bar", RenameMode::Replace)),
    ("rename A/foo B/bar", |m| rename(m, "A/foo", "B/bar", RenameMode::Replace)),
    ("rename A C", |m| rename(m, "A", "C", RenameMode::Replace)),
    ("rename A B", |m| rename(m, "A", "B", RenameMode::Replace)),
    ("rename A B/C", |m| rename(m, "A", "B/C", RenameMode::Replace)),
    ("exchange foo A/foo", |m| rename(m, "foo", "A/foo", RenameMode::Exchange)),
    ("exchange A B", |m| rename(m, "A", "B", RenameMode::Exchange)),
    ("truncate foo 0", |m| truncate(m, "foo", 0)),
    ("truncate foo 1000", |m| truncate(m, "foo", 1000)),
    ("truncate A/foo 20000", |m| truncate(m, "A/foo", 20_000)),
    ("setxattr foo", |m| set_xattr(m, "foo")),
    ("setxattr A", |m| set_xattr(m, "A")),
    ("removexattr foo", |m| Some(Op::RemoveXattr { node: node(m, "foo")?, name: b"user.old".to_vec() })),
];

/// Calls that make data durable.
const PERSISTENCE: &[Template] = &[
    ("sync", |_| Some(Op::Sync)),
    ("fsync foo", |m| fsync(m, "foo", false)),
    ("fdatasync foo", |m| fsync(m, "foo", true)),
    ("fsync A/foo", |m| fsync(m, "A/foo", false)),
    ("fsync bar", |m| fsync(m, "bar", false)),
    ("fsync A", |m| fsync(m, "A", false)),
    ("fsync /", |m| fsync(m, "", false)),
];

/// One sequence: numbers of operations, each with the number of the durable call after it. Its text form is its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    steps: Vec<(usize, Option<usize>)>,
}

impl Sequence {
    /// Returns the number of sequences of this length, those that POSIX refuses included.
    pub fn count(length: usize) -> usize {
        let inner = OPERATIONS.len() * (PERSISTENCE.len() + 1);
        inner.pow(length as u32 - 1) * OPERATIONS.len() * PERSISTENCE.len()
    }

    /// Returns the sequence of this length with this number. The last operation is always followed by a durable call.
    pub fn number(length: usize, mut number: usize) -> Sequence {
        let mut steps = Vec::new();
        for place in 0..length {
            let operation = number % OPERATIONS.len();
            number /= OPERATIONS.len();
            let last = place + 1 == length;
            let choices = PERSISTENCE.len() + usize::from(!last);
            let durable = number % choices;
            number /= choices;
            steps.push((operation, (durable < PERSISTENCE.len()).then_some(durable)));
        }
        Sequence { steps }
    }

    /// Describes the sequence in words.
    pub fn words(&self) -> String {
        let word = |(operation, durable): &(usize, Option<usize>)| {
            let durable = durable.map_or(String::new(), |number| format!("; {}", PERSISTENCE[number].0));
            format!("{}{durable}", OPERATIONS[*operation].0)
        };
        self.steps.iter().map(word).collect::<Vec<_>>().join("; ")
    }

    /// Returns the operations with the ones that prepare them, and the number of those; `None` if POSIX refuses one.
    fn ops(&self) -> Option<(Vec<Op>, usize)> {
        let mut model = Model::new(0o755, false);
        let mut ops = Vec::new();
        let mut apply = |model: &mut Model, op: Op| -> Option<()> {
            model.apply(&op).ok()?;
            ops.push(op);
            Some(())
        };
        let setup: [fn(&Model) -> Option<Op>; 8] = [
            |m| mkdir(m, "A"),
            |m| mkdir(m, "B"),
            |m| create(m, "foo"),
            |m| write(m, "foo", 0, 12_000, false),
            |m| Some(Op::SetXattr { node: node(m, "foo")?, name: b"user.old".to_vec(), len: 9, mode: SetMode::Any }),
            |m| create(m, "A/foo"),
            |m| write(m, "A/foo", 0, 6_000, false),
            |_| Some(Op::Sync),
        ];
        for template in setup {
            let op = template(&model)?;
            apply(&mut model, op)?;
        }
        for (operation, durable) in &self.steps {
            let templates = [Some(&OPERATIONS[*operation]), durable.map(|number| &PERSISTENCE[number])];
            for (_, template) in templates.into_iter().flatten() {
                let op = template(&model)?;
                apply(&mut model, op)?;
            }
        }
        Some((ops, setup.len()))
    }
}

/// Runs a sequence and returns the number of states judged; 0 if POSIX refuses it, or the volume cannot be made.
///
/// # Errors
/// The faults of the first bad state.
pub fn run<F: Family>(geometry: &Geometry, sequence: &Sequence) -> Result<u64, String> {
    let Some((ops, setup)) = sequence.ops() else { return Ok(0) };
    let Some(recording) = Recording::<F>::of_ops(geometry, 0, &ops)? else { return Ok(0) };
    let mut states = 0;
    for cut in recording.flush_cuts(setup) {
        for (mode, seed) in [(Mode::All, 0), (Mode::None, 0), (Mode::Subset, 1), (Mode::Torn, 2)] {
            recording.judge_quickly(cut, mode, seed).map_err(|said| format!("cut at {cut}, {mode:?}: {said}"))?;
            states += 1;
        }
    }
    Ok(states)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_give_different_sequences_and_most_are_possible() {
        let count = Sequence::count(1);
        let all: Vec<Sequence> = (0..count).map(|number| Sequence::number(1, number)).collect();
        let words: std::collections::BTreeSet<String> = all.iter().map(Sequence::words).collect();
        assert_eq!(words.len(), count);
        let possible = all.iter().filter(|sequence| sequence.ops().is_some()).count();
        assert!(possible * 2 > count, "{possible} of {count}");
    }
}
