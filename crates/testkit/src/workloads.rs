//! Workloads during which the power fails: named sequences of operations, small enough that their crash states can be
//! enumerated.
//!
//! A workload is built against a scratch model, so it names nodes before any volume exists.

use moafs_vfs::api::{Allocate, RenameMode};
use moafs_vfs::types::{FileKind, SetMode};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::model::{Model, NodeId, Outcome};
use crate::ops::{Generator, Limits, Op, Paging};

/// The root directory.
const ROOT: NodeId = NodeId::ROOT;

/// A sequence under construction.
pub struct Script {
    model: Model,
    ops: Vec<Op>,
    /// Bytes in a block of the volume it is for.
    pub block: u64,
}

impl Script {
    /// Adds an operation that must work.
    ///
    /// # Panics
    /// If the model refuses it: the workload is wrong.
    pub fn op(&mut self, op: Op) -> Outcome {
        let outcome = self.model.apply(&op).unwrap_or_else(|errno| panic!("workload: {op:?}: {errno}"));
        self.ops.push(op);
        outcome
    }

    fn made(&mut self, op: Op) -> NodeId {
        match self.op(op) {
            Outcome::Made(id) => id,
            other => panic!("workload: {other:?} is not a new node"),
        }
    }

    fn file(&mut self, dir: NodeId, name: &str) -> NodeId {
        self.made(Op::create(dir, name))
    }

    fn dir(&mut self, dir: NodeId, name: &str) -> NodeId {
        self.made(Op::mkdir(dir, name))
    }

    /// Makes a file with `blocks` blocks of data.
    fn full(&mut self, dir: NodeId, name: &str, blocks: u64) -> NodeId {
        let node = self.file(dir, name);
        self.write(node, 0, blocks * self.block);
        node
    }

    fn write(&mut self, node: NodeId, offset: u64, len: u64) {
        self.op(Op::Write { node, offset, len: len as usize, append: false });
    }

    fn append(&mut self, node: NodeId, len: u64) {
        self.op(Op::Write { node, offset: 0, len: len as usize, append: true });
    }

    fn truncate(&mut self, node: NodeId, size: u64) {
        self.op(Op::Truncate { node, size });
    }

    fn fsync(&mut self, node: NodeId) {
        self.op(Op::Fsync { node, data_only: false });
    }

    fn fdatasync(&mut self, node: NodeId) {
        self.op(Op::Fsync { node, data_only: true });
    }

    fn sync(&mut self) {
        self.op(Op::Sync);
    }

    fn run_background_step(&mut self) {
        self.op(Op::BackgroundStep);
    }

    fn unlink(&mut self, dir: NodeId, name: &str) {
        self.op(Op::Unlink { dir, name: name.into() });
    }

    fn rmdir(&mut self, dir: NodeId, name: &str) {
        self.op(Op::Rmdir { dir, name: name.into() });
    }

    fn rename(&mut self, from: (NodeId, &str), to: (NodeId, &str)) {
        self.op(Op::Rename { from: (from.0, from.1.into()), to: (to.0, to.1.into()), mode: RenameMode::Replace });
    }

    fn exchange(&mut self, from: (NodeId, &str), to: (NodeId, &str)) {
        self.op(Op::Rename { from: (from.0, from.1.into()), to: (to.0, to.1.into()), mode: RenameMode::Exchange });
    }

    fn swap_on(&mut self, pages: u32) {
        self.op(Op::Page(Paging::On { pages, area_bytes: 64 << 10 }));
    }

    fn swap_off(&mut self) {
        self.op(Op::Page(Paging::Off));
    }

    fn page_out(&mut self, first: u32, count: u32) {
        self.op(Op::Page(Paging::Out { first, count }));
    }

    fn page_in(&mut self, first: u32, count: u32) {
        self.op(Op::Page(Paging::In { first, count }));
    }

    fn free_pages(&mut self, first: u32, count: u32) {
        self.op(Op::Page(Paging::Free { first, count }));
        self.op(Op::Page(Paging::BackgroundStep));
    }

    fn xattr(&mut self, node: NodeId, name: &str, len: usize) {
        self.op(Op::SetXattr { node, name: name.as_bytes().to_vec(), len, mode: SetMode::Any });
    }
}

/// A named workload.
#[derive(Clone, Copy)]
pub struct Workload {
    /// Its name, as on the command line.
    pub name: &'static str,
    build: fn(&mut Script, u64),
}

impl Workload {
    /// Returns the operations for a volume with this block size; `seed` matters to the random ones only.
    pub fn ops(&self, block_size: u32, seed: u64) -> Vec<Op> {
        let mut script = Script { model: Model::new(0o755, false), ops: Vec::new(), block: u64::from(block_size) };
        (self.build)(&mut script, seed);
        script.ops
    }
}

/// Blocks that the direct pointers of an ext inode reach.
const DIRECT: u64 = 12;

/// All workloads.
pub const ALL: [Workload; 39] = [
    Workload { name: "create", build: create },
    Workload { name: "create-fsync", build: create_fsync },
    Workload { name: "append", build: append },
    Workload { name: "append-fsync", build: append_fsync },
    Workload { name: "overwrite", build: overwrite },
    Workload { name: "rename-over", build: rename_over },
    Workload { name: "rename-cross", build: rename_cross },
    Workload { name: "rename-chain", build: rename_chain },
    Workload { name: "directory-move", build: directory_move },
    Workload { name: "move-new", build: move_new },
    Workload { name: "move-late", build: move_late },
    Workload { name: "move-twice", build: move_twice },
    Workload { name: "move-over", build: move_over },
    Workload { name: "move-beside", build: move_beside },
    Workload { name: "move-rmdir", build: move_rmdir },
    Workload { name: "link-unlink", build: link_unlink },
    Workload { name: "exchange", build: exchange },
    Workload { name: "exchange-kinds", build: exchange_kinds },
    Workload { name: "exchange-directories", build: exchange_directories },
    Workload { name: "unlink-open", build: unlink_open },
    Workload { name: "unlink-reuse", build: unlink_reuse },
    Workload { name: "mkdir-rmdir", build: mkdir_rmdir },
    Workload { name: "deep-fsync", build: deep_fsync },
    Workload { name: "truncate-down", build: truncate_down },
    Workload { name: "truncate-up", build: truncate_up },
    Workload { name: "truncate-reuse", build: truncate_reuse },
    Workload { name: "hard-links", build: hard_links },
    Workload { name: "xattrs", build: xattrs },
    Workload { name: "symlinks-special", build: symlinks_special },
    Workload { name: "sparse-punch", build: sparse_punch },
    Workload { name: "fsync-mix", build: fsync_mix },
    Workload { name: "big-directory", build: big_directory },
    Workload { name: "tmpfile-link", build: tmpfile_link },
    Workload { name: "attributes", build: attributes },
    Workload { name: "log-rotation", build: log_rotation },
    Workload { name: "small-files", build: small_files },
    Workload { name: "defragment", build: defragment },
    Workload { name: "defragment-large", build: defragment_large },
    Workload { name: "random", build: random },
];

/// Workloads that are hard for a log: long chains of fsyncs, little room, old blocks that come back, deep maps.
pub const LOG: [Workload; 8] = [
    Workload { name: "roll-forward", build: roll_forward },
    Workload { name: "roll-forward-many", build: roll_forward_many },
    Workload { name: "roll-forward-names", build: roll_forward_names },
    Workload { name: "roll-forward-shapes", build: roll_forward_shapes },
    Workload { name: "churn", build: churn },
    Workload { name: "fill-and-free", build: fill_and_free },
    Workload { name: "deep-map", build: deep_map },
    Workload { name: "many-orphans", build: many_orphans },
];

/// Pages in swap areas beside the files.
pub const SWAP: [Workload; 2] =
    [Workload { name: "swap-areas", build: swap_areas }, Workload { name: "swap-reuse", build: swap_reuse }];

/// Returns the workload with this name.
pub fn by_name(name: &str) -> Option<Workload> {
    ALL.into_iter().chain(LOG).chain(SWAP).find(|workload| workload.name == name)
}

/// Makes, fills and empties areas while small files are made, changed and removed around them.
fn swap_areas(s: &mut Script, _: u64) {
    let a = s.dir(ROOT, "a");
    let kept = s.full(a, "kept", 5);
    s.swap_on(96);
    s.fsync(kept);
    s.page_out(0, 20);
    for i in 0..5u64 {
        let file = s.full(a, &format!("f{i}"), 3 + i);
        s.write(kept, i * s.block, s.block);
        s.page_out(10 * i as u32, 20);
        s.fsync(if i % 2 == 0 { file } else { kept });
        s.page_in(5 * i as u32, 10);
        if i >= 2 {
            s.unlink(a, &format!("f{}", i - 2));
        }
    }
    s.sync();
    s.free_pages(0, 40);
    s.append(kept, 3 * s.block);
    s.page_out(30, 50);
    s.fsync(kept);
    s.free_pages(60, 36);
    s.run_background_step();
    s.swap_off();
    let last = s.full(a, "last", 30);
    s.fsync(last);
    s.swap_on(64);
    s.page_out(0, 64);
    s.sync();
}

/// Pages go where deleted files were, and files go where pages were: neither ever shows the other's bytes.
fn swap_reuse(s: &mut Script, _: u64) {
    let keep = s.full(ROOT, "keep", 40);
    s.full(ROOT, "old", 400);
    // No read or write follows, so that pages go to the lowest free blocks.
    s.op(Op::Remount);
    s.swap_on(128);
    s.unlink(ROOT, "old");
    s.run_background_step();
    s.page_out(0, 64);
    s.sync();
    s.page_out(64, 64);
    let new = s.full(ROOT, "new", 100);
    s.fsync(new);
    s.free_pages(0, 128);
    let next = s.full(ROOT, "next", 200);
    s.page_out(0, 30);
    s.fsync(next);
    s.truncate(keep, 0);
    s.sync();
    s.page_out(40, 60);
    s.page_in(0, 128);
    s.swap_off();
    s.full(ROOT, "after", 300);
    s.unlink(ROOT, "new");
    s.sync();
}

fn create(s: &mut Script, _: u64) {
    let a = s.dir(ROOT, "a");
    for i in 0..10 {
        let file = s.file(a, &format!("f{i}"));
        s.write(file, 0, 700 * i + 1);
    }
    s.sync();
    for i in 0..10 {
        let file = s.file(ROOT, &format!("g{i}"));
        s.write(file, 0, s.block);
    }
    s.run_background_step();
}

fn create_fsync(s: &mut Script, _: u64) {
    for i in 0..5 {
        let dir = s.dir(ROOT, &format!("d{i}"));
        let file = s.full(dir, "f", 1 + i);
        s.fsync(file);
        s.full(dir, "unsynced", 1);
    }
}

fn append(s: &mut Script, _: u64) {
    let file = s.full(ROOT, "log", 1);
    s.sync();
    for i in 0..20 {
        s.append(file, 300 + 900 * (i % 4));
        if i % 5 == 4 {
            s.sync();
        }
    }
}

fn append_fsync(s: &mut Script, _: u64) {
    let file = s.full(ROOT, "log", DIRECT - 2);
    let other = s.full(ROOT, "other", 1);
    for i in 0..12 {
        s.append(file, s.block / 2 + 100 * i);
        s.append(other, 100);
        if i % 2 == 0 {
            s.fsync(file);
        } else {
            s.fdatasync(file);
        }
    }
}

fn overwrite(s: &mut Script, _: u64) {
    let a = s.full(ROOT, "a", 6);
    let b = s.full(ROOT, "b", 6);
    s.sync();
    for i in 0..6 {
        s.write(a, i * s.block / 2, s.block);
        s.write(b, i * 500, 700);
        s.fsync(if i % 2 == 0 { a } else { b });
    }
}

/// Small files of two directories: made, rewritten here and there, grown, shrunk and removed, so that those written
/// back together move, stay, and take each other's old places.
fn small_files(s: &mut Script, _: u64) {
    let dirs = [s.dir(ROOT, "a"), s.dir(ROOT, "b")];
    let mut files = Vec::new();
    for i in 0..16u64 {
        files.push(s.full(dirs[i as usize % 2], &format!("f{i}"), 1 + i % 3));
    }
    s.sync();
    for i in [0, 4, 5, 8, 9, 12] {
        s.write(files[i], 0, s.block);
    }
    s.fsync(files[9]);
    for i in [1, 2, 3, 6] {
        s.append(files[i], s.block);
    }
    s.sync();
    for i in [7usize, 10, 13] {
        s.unlink(dirs[i % 2], &format!("f{i}"));
    }
    for i in (0..16).filter(|i| ![7, 10, 13].contains(i)) {
        s.write(files[i], 0, s.block / 2);
    }
    s.truncate(files[2], 100);
    s.fsync(files[11]);
    s.full(dirs[0], "last", DIRECT);
    s.run_background_step();
}

/// A directory whose files lie between another's, which are removed; files are changed around two moves.
fn defragment(s: &mut Script, _: u64) {
    let dirs = [s.dir(ROOT, "kept"), s.dir(ROOT, "gone")];
    let mut kept = Vec::new();
    for i in 0..14u64 {
        for dir in dirs {
            let file = s.full(dir, &format!("f{i}"), 1 + i % 3);
            s.fsync(file);
            kept.push(file);
        }
    }
    let kept: Vec<NodeId> = kept.into_iter().step_by(2).collect();
    (0..14).for_each(|i| s.unlink(dirs[1], &format!("f{i}")));
    s.sync();
    s.write(kept[3], 0, s.block / 2);
    s.op(Op::Defragment);
    s.write(kept[4], 0, s.block);
    s.fsync(kept[5]);
    s.fsync(kept[4]);
    s.truncate(kept[6], 100);
    s.rename((dirs[0], "f7"), (ROOT, "moved"));
    s.unlink(dirs[0], "f8");
    s.append(kept[9], s.block);
    s.op(Op::Defragment);
    s.write(kept[10], 0, s.block);
    s.run_background_step();
}

/// Two logs that grew by turns; one is moved, cut, and grows again.
fn defragment_large(s: &mut Script, _: u64) {
    let logs = [s.file(ROOT, "one"), s.file(ROOT, "two")];
    for _ in 0..20 {
        for log in logs {
            s.append(log, s.block);
            s.fsync(log);
        }
    }
    s.op(Op::Defragment);
    s.append(logs[0], s.block + 10);
    s.fsync(logs[0]);
    s.truncate(logs[1], 15 * s.block);
    s.write(logs[0], 5 * s.block, 2 * s.block);
    s.op(Op::Defragment);
    s.unlink(ROOT, "two");
    s.run_background_step();
}

fn rename_over(s: &mut Script, _: u64) {
    for round in 0..4 {
        let new = s.full(ROOT, "file.new", 2 + round);
        s.fsync(new);
        s.rename((ROOT, "file.new"), (ROOT, "file"));
        if round % 2 == 1 {
            s.fsync(ROOT);
        }
    }
    let last = s.full(ROOT, "file.new", 1);
    s.rename((ROOT, "file.new"), (ROOT, "file"));
    s.fsync(last);
}

fn rename_cross(s: &mut Script, _: u64) {
    let (a, b) = (s.dir(ROOT, "a"), s.dir(ROOT, "b"));
    for i in 0..4 {
        s.full(a, &format!("f{i}"), 1);
    }
    s.sync();
    for i in 0..4 {
        s.rename((a, &format!("f{i}")), (b, &format!("g{i}")));
    }
    s.fsync(b);
    s.rename((b, "g0"), (a, "back"));
    s.rename((b, "g1"), (a, "f1"));
    s.fsync(a);
}

fn rename_chain(s: &mut Script, _: u64) {
    let file = s.full(ROOT, "n0", 2);
    s.fsync(file);
    for i in 0..8 {
        s.rename((ROOT, &format!("n{i}")), (ROOT, &format!("n{}", i + 1)));
        if i % 3 == 2 {
            s.fsync(file);
        }
        if i % 4 == 3 {
            s.run_background_step();
        }
    }
}

fn directory_move(s: &mut Script, _: u64) {
    let (a, b) = (s.dir(ROOT, "a"), s.dir(ROOT, "b"));
    let inner = s.dir(a, "inner");
    let file = s.full(inner, "f", 2);
    s.sync();
    s.rename((a, "inner"), (b, "inner"));
    s.fsync(file);
    s.rename((b, "inner"), (ROOT, "top"));
    s.append(file, 100);
    s.rename((ROOT, "b"), (inner, "b"));
    s.fsync(inner);
    s.rename((inner, "b"), (a, "b"));
    s.sync();
}

/// Directories that move before they were written at all: alone in their parent's sector, beside others, into a new
/// directory, into each other.
fn move_new(s: &mut Script, _: u64) {
    let (a, b) = (s.dir(ROOT, "a"), s.dir(ROOT, "b"));
    s.sync();
    let alone = s.dir(a, "alone");
    s.full(alone, "f", 1);
    s.rename((a, "alone"), (b, "alone"));
    s.sync();
    s.dir(a, "one");
    s.file(a, "beside");
    s.rename((a, "one"), (b, "one"));
    s.sync();
    let new = s.dir(ROOT, "new");
    s.dir(b, "two");
    s.rename((b, "two"), (new, "two"));
    let three = s.dir(a, "three");
    s.rename((ROOT, "new"), (three, "new"));
    s.rename((a, "three"), (ROOT, "three"));
    s.fsync(new);
}

/// The sector with the old name is written late: an entry in it has waited for a chain of renames.
fn move_late(s: &mut Script, _: u64) {
    let (a, b) = (s.dir(ROOT, "a"), s.dir(ROOT, "b"));
    s.full(a, "n0", 1);
    s.dir(b, "old");
    s.sync();
    for i in 0..3 {
        s.rename((a, &format!("n{i}")), (a, &format!("n{}", i + 1)));
    }
    s.dir(a, "new");
    s.rename((a, "new"), (b, "new"));
    s.rename((b, "old"), (a, "old"));
    s.sync();
    for i in 3..6 {
        s.rename((a, &format!("n{i}")), (a, &format!("n{}", i + 1)));
    }
    let target = s.dir(a, "target");
    s.rename((b, "new"), (target, "new"));
    s.sync();
}

/// Directories moved on, back, or removed with the first new name before that was written.
fn move_twice(s: &mut Script, _: u64) {
    let dirs = ["a", "b", "c"].map(|name| s.dir(ROOT, name));
    let [a, b, c] = dirs;
    s.full(a, "f", 1);
    let d = s.dir(a, "d");
    s.full(d, "inner", 1);
    s.dir(a, "gone");
    s.sync();
    s.rename((a, "f"), (b, "f"));
    s.rename((b, "f"), (c, "f"));
    s.sync();
    s.rename((a, "d"), (b, "d"));
    s.rename((b, "d"), (c, "d"));
    s.sync();
    s.rename((c, "d"), (b, "d"));
    s.rename((b, "d"), (c, "d"));
    s.sync();
    s.dir(a, "new");
    s.rename((a, "new"), (b, "new"));
    s.rename((b, "new"), (b, "newer"));
    s.rename((b, "newer"), (c, "new"));
    s.sync();
    s.rename((a, "gone"), (b, "gone"));
    s.rmdir(b, "gone");
    s.sync();
}

/// Directories moved over empty ones, old and new, and over one that was itself just moved there.
fn move_over(s: &mut Script, _: u64) {
    let (a, b) = (s.dir(ROOT, "a"), s.dir(ROOT, "b"));
    for name in ["v0", "v1"] {
        s.dir(b, name);
    }
    s.dir(a, "s");
    s.dir(a, "t");
    s.sync();
    let new = s.dir(a, "new");
    s.file(new, "f");
    s.rename((a, "new"), (b, "v0"));
    s.sync();
    s.dir(b, "v2");
    s.dir(a, "new");
    s.rename((a, "new"), (b, "v2"));
    s.rename((a, "s"), (b, "v1"));
    s.rename((a, "t"), (b, "v1"));
    s.sync();
}

/// Directories move over empty ones in the same directory: `..` does not tell the new name from the old one.
fn move_beside(s: &mut Script, _: u64) {
    let d = s.dir(ROOT, "d");
    for name in ["a", "v0", "v1", "b"] {
        s.dir(d, name);
    }
    s.sync();
    s.rename((d, "a"), (d, "v0"));
    s.sync();
    let new = s.dir(d, "new");
    s.file(new, "f");
    s.rename((d, "new"), (d, "v0"));
    s.rename((d, "b"), (d, "v1"));
    s.sync();
    s.dir(ROOT, "e");
    s.rename((ROOT, "e"), (d, "v1"));
    s.dir(d, "c");
    s.rename((d, "c"), (d, "v1"));
    s.rename((d, "v1"), (ROOT, "last"));
    s.sync();
}

/// The old parent is removed as soon as its entries have moved: they need their new names first.
fn move_rmdir(s: &mut Script, _: u64) {
    let (a, b) = (s.dir(ROOT, "a"), s.dir(ROOT, "b"));
    let (x, y) = (s.dir(a, "x"), s.dir(a, "y"));
    s.full(x, "f", 1);
    let d = s.dir(y, "d");
    s.full(d, "inner", 1);
    s.sync();
    s.rename((x, "f"), (b, "f"));
    s.rmdir(a, "x");
    s.sync();
    s.rename((y, "d"), (b, "d"));
    s.rmdir(a, "y");
    s.rmdir(ROOT, "a");
    s.sync();
}

/// Renames in two steps: a second name is made, the first one is removed, then its directory.
fn link_unlink(s: &mut Script, _: u64) {
    let (a, b, c) = (s.dir(ROOT, "a"), s.dir(ROOT, "b"), s.dir(ROOT, "c"));
    let file = s.full(a, "f", 1);
    s.sync();
    s.op(Op::Link { node: file, dir: b, name: "f".into() });
    s.unlink(a, "f");
    s.rmdir(ROOT, "a");
    s.sync();
    s.rename((b, "f"), (c, "f"));
    s.op(Op::Link { node: file, dir: ROOT, name: "g".into() });
    s.unlink(c, "f");
    s.sync();
    let new = s.dir(b, "new");
    s.op(Op::Link { node: file, dir: new, name: "h".into() });
    s.unlink(ROOT, "g");
    s.rename((new, "h"), (c, "h"));
    s.rmdir(b, "new");
    s.sync();
}

fn exchange(s: &mut Script, _: u64) {
    let dir = s.dir(ROOT, "d");
    let a = s.full(ROOT, "a", 1);
    let b = s.full(dir, "b", 2);
    s.sync();
    s.exchange((ROOT, "a"), (dir, "b"));
    s.append(a, 50);
    s.fsync(a);
    s.exchange((dir, "b"), (ROOT, "a"));
    s.fsync(b);
    let new = s.full(ROOT, "new", 1);
    s.exchange((ROOT, "new"), (ROOT, "a"));
    s.fsync(new);
}

fn exchange_directories(s: &mut Script, _: u64) {
    let (a, b) = (s.dir(ROOT, "a"), s.dir(ROOT, "b"));
    let (x, y) = (s.dir(a, "x"), s.dir(b, "y"));
    let fx = s.full(x, "fx", 1);
    s.full(y, "fy", 1);
    s.sync();
    s.exchange((a, "x"), (b, "y"));
    s.fsync(fx);
    s.full(ROOT, "plain", 1);
    s.exchange((a, "x"), (ROOT, "plain"));
    s.fsync(y);
    s.sync();
}

/// Exchanges files with directories, in one directory and across two; new directories with old ones.
fn exchange_kinds(s: &mut Script, _: u64) {
    let (a, b) = (s.dir(ROOT, "a"), s.dir(ROOT, "b"));
    let d = s.dir(b, "d");
    s.full(d, "inner", 1);
    s.full(a, "f", 1);
    s.sync();
    s.exchange((a, "f"), (b, "d"));
    s.sync();
    s.exchange((b, "d"), (a, "f"));
    s.sync();
    s.full(b, "g", 1);
    s.exchange((b, "g"), (b, "d"));
    s.sync();
    s.exchange((b, "g"), (b, "d"));
    s.sync();
    s.dir(a, "new");
    s.exchange((a, "new"), (b, "d"));
    s.sync();
    s.dir(b, "newer");
    s.exchange((b, "newer"), (a, "new"));
    s.sync();
}

fn unlink_open(s: &mut Script, _: u64) {
    for i in 0..3 {
        let name = format!("f{i}");
        let file = s.full(ROOT, &name, 3 + 6 * i);
        s.fsync(file);
        s.op(Op::Hold { node: file });
        s.unlink(ROOT, &name);
        s.append(file, s.block);
        s.sync();
        let next = s.full(ROOT, &format!("g{i}"), 2);
        s.op(Op::Release { node: file });
        s.run_background_step();
        s.fsync(next);
    }
}

/// Freed blocks and inodes are reused under other names, where another file's bytes would show.
fn unlink_reuse(s: &mut Script, _: u64) {
    for i in 0..6 {
        s.full(ROOT, &format!("old{i}"), 4 + i);
    }
    s.sync();
    for i in 0..6 {
        s.unlink(ROOT, &format!("old{i}"));
        if i % 2 == 0 {
            s.run_background_step();
        }
        let new = s.full(ROOT, &format!("new{i}"), 4);
        if i % 3 == 0 {
            s.fsync(new);
        }
    }
    s.sync();
    for i in 0..6 {
        s.full(ROOT, &format!("third{i}"), 5);
    }
}

fn mkdir_rmdir(s: &mut Script, _: u64) {
    for i in 0..5 {
        let dir = s.dir(ROOT, &format!("d{i}"));
        s.dir(dir, "sub");
        if i == 1 {
            s.fsync(dir);
        }
    }
    s.sync();
    for i in 0..5 {
        let name = format!("d{i}");
        let Some(dir) = s.model.node(ROOT).entries.get(name.as_bytes()).copied() else { continue };
        s.op(Op::Rmdir { dir, name: "sub".into() });
        s.op(Op::Rmdir { dir: ROOT, name: name.as_str().into() });
        s.dir(ROOT, &format!("e{i}"));
        if i % 2 == 0 {
            s.fsync(ROOT);
        }
    }
}

fn deep_fsync(s: &mut Script, _: u64) {
    let mut at = ROOT;
    for i in 0..12 {
        at = s.dir(at, &format!("level{i}"));
    }
    let file = s.full(at, "leaf", 1);
    s.fsync(file);
    let sibling = s.full(at, "sibling", 1);
    s.fdatasync(sibling);
}

fn truncate_down(s: &mut Script, _: u64) {
    let per_block = s.block / 4;
    let blocks = (DIRECT + per_block + 8).min(700);
    let file = s.full(ROOT, "big", blocks);
    s.fsync(file);
    for size in [(DIRECT + 20) * s.block + 100, (DIRECT + 1) * s.block, 5 * s.block + 17, 0] {
        s.truncate(file, size);
        s.fsync(file);
        s.append(file, 2 * s.block);
    }
    s.sync();
}

fn truncate_up(s: &mut Script, _: u64) {
    let per_block = s.block / 4;
    let file = s.full(ROOT, "grows", 1);
    s.fsync(file);
    for size in [(DIRECT + 2) * s.block, (DIRECT + per_block + 2) * s.block] {
        s.truncate(file, size);
        s.append(file, s.block + 3);
        s.fsync(file);
    }
    s.write(file, (DIRECT + per_block * per_block + per_block + 1) * s.block, 100);
    s.fsync(file);
}

/// Blocks cut off one file are given to another.
fn truncate_reuse(s: &mut Script, _: u64) {
    let a = s.full(ROOT, "a", DIRECT + 10);
    s.sync();
    for i in 0..5 {
        s.truncate(a, 2 * s.block);
        s.run_background_step();
        let b = s.full(ROOT, &format!("b{i}"), 6);
        if i % 2 == 0 {
            s.fsync(b);
        }
        s.append(a, 8 * s.block);
        s.fsync(a);
    }
}

fn hard_links(s: &mut Script, _: u64) {
    let dir = s.dir(ROOT, "d");
    let file = s.full(ROOT, "one", 2);
    for i in 0..4 {
        s.op(Op::Link { node: file, dir, name: format!("link{i}").as_str().into() });
    }
    s.fsync(file);
    s.unlink(ROOT, "one");
    s.unlink(dir, "link0");
    s.append(file, 100);
    s.fsync(file);
    s.op(Op::Link { node: file, dir: ROOT, name: "again".into() });
    s.unlink(dir, "link1");
    s.fsync(dir);
    s.unlink(dir, "link2");
    s.unlink(dir, "link3");
    s.sync();
}

fn xattrs(s: &mut Script, _: u64) {
    let (a, b) = (s.full(ROOT, "a", 1), s.dir(ROOT, "b"));
    s.xattr(a, "user.small", 20);
    s.xattr(b, "user.small", 20);
    s.fsync(a);
    s.xattr(a, "user.large", 300);
    s.xattr(b, "trusted.large", 400);
    s.fsync(b);
    s.xattr(a, "user.small", 40);
    s.fsync(a);
    s.op(Op::RemoveXattr { node: a, name: b"user.large".to_vec() });
    s.xattr(b, "user.small", 7);
    s.sync();
    s.unlink(ROOT, "a");
    let c = s.full(ROOT, "c", 1);
    s.xattr(c, "user.large", 500);
    s.fsync(c);
}

fn symlinks_special(s: &mut Script, _: u64) {
    for (i, len) in [5usize, 59, 60, 61, 300].into_iter().enumerate() {
        s.made(Op::Symlink { dir: ROOT, name: format!("s{i}").as_str().into(), target: vec![b'x'; len] });
    }
    s.made(Op::Create { dir: ROOT, name: "fifo".into(), kind: FileKind::Fifo, perm: 0o600, rdev: 0 });
    let rdev = libc::makedev(300, 70_000);
    s.made(Op::Create { dir: ROOT, name: "dev".into(), kind: FileKind::CharDevice, perm: 0o600, rdev });
    s.fsync(ROOT);
    s.unlink(ROOT, "s4");
    s.made(Op::Symlink { dir: ROOT, name: "s5".into(), target: vec![b'y'; 200] });
    s.rename((ROOT, "s5"), (ROOT, "s1"));
    s.sync();
}

fn sparse_punch(s: &mut Script, _: u64) {
    let file = s.full(ROOT, "f", DIRECT + 20);
    s.fsync(file);
    let (block, punch) = (s.block, |offset, len| Op::Allocate { node: file, offset, len, how: Allocate::Punch });
    s.op(punch(2 * block, 3 * block));
    s.fsync(file);
    s.op(punch((DIRECT - 1) * block + 10, 6 * block));
    s.write(file, 3 * block, block);
    s.fsync(file);
    s.full(ROOT, "other", 8);
    s.op(Op::Allocate { node: file, offset: block / 2, len: 4 * block, how: Allocate::Zero { keep_size: true } });
    s.fsync(file);
    s.op(Op::Allocate { node: file, offset: 40 * block, len: 4 * block, how: Allocate::Extend });
    s.fsync(file);
}

fn fsync_mix(s: &mut Script, _: u64) {
    let dir = s.dir(ROOT, "mail");
    for i in 0..8 {
        let file = s.full(dir, &format!("m{i}"), 1 + i % 3);
        match i % 4 {
            0 => s.fsync(file),
            1 => s.fdatasync(file),
            2 => s.fsync(dir),
            _ => {}
        }
        if i >= 4 {
            s.unlink(dir, &format!("m{}", i - 4));
        }
    }
    s.sync();
}

fn big_directory(s: &mut Script, _: u64) {
    let dir = s.dir(ROOT, "big");
    let name = |i: u64| format!("{i:04}-{}", "n".repeat(60));
    for i in 0..60 {
        s.file(dir, &name(i));
        if i % 20 == 19 {
            s.fsync(dir);
        }
    }
    for i in (0..60).step_by(2) {
        s.unlink(dir, &name(i));
    }
    for i in 100..120 {
        s.file(dir, &name(i));
    }
    s.fsync(dir);
}

fn tmpfile_link(s: &mut Script, _: u64) {
    for i in 0..3 {
        let file = s.made(Op::Tmpfile { dir: ROOT, perm: 0o600 });
        s.write(file, 0, 3 * s.block);
        if i != 1 {
            s.fsync(file);
        }
        s.op(Op::Link { node: file, dir: ROOT, name: format!("t{i}").as_str().into() });
        s.fsync(if i == 2 { ROOT } else { file });
        s.op(Op::Release { node: file });
    }
    let gone = s.made(Op::Tmpfile { dir: ROOT, perm: 0o600 });
    s.write(gone, 0, s.block);
    s.sync();
    s.op(Op::Release { node: gone });
    s.run_background_step();
}

fn attributes(s: &mut Script, _: u64) {
    let (file, dir) = (s.full(ROOT, "f", 1), s.dir(ROOT, "d"));
    s.fsync(file);
    for i in 0..5 {
        s.op(Op::SetPerm { node: file, perm: 0o600 + i });
        s.op(Op::SetOwner { node: dir, uid: 1000 + i, gid: 70_000 + i });
        if i % 2 == 0 {
            s.fsync(file);
        } else {
            s.fsync(dir);
        }
    }
    s.op(Op::SetPerm { node: dir, perm: 0o700 });
}

/// The operations of a logger: append, rotate, create anew.
fn log_rotation(s: &mut Script, _: u64) {
    let mut log = s.full(ROOT, "log", 1);
    for round in 0..4 {
        for _ in 0..3 {
            s.append(log, 333);
            s.fdatasync(log);
        }
        s.rename((ROOT, "log"), (ROOT, if round % 2 == 0 { "log.1" } else { "log.0" }));
        log = s.file(ROOT, "log");
        s.append(log, 100);
    }
    s.fsync(log);
}

/// Old and new files, fsynced again and again with few changes between: the chain passes the ends of segments.
fn roll_forward(s: &mut Script, _: u64) {
    let files: Vec<NodeId> = (0..6).map(|i| s.full(ROOT, &format!("f{i}"), 3)).collect();
    s.sync();
    for i in 0..620 {
        s.write(files[i % 6], (i as u64 % 5) * s.block, 700);
        s.fsync(files[i % 6]);
        if i % 40 == 39 {
            let new = s.full(ROOT, &format!("new{i}"), 1);
            s.fsync(new);
        }
    }
}

/// Many new files, each fsynced once, between others that are not.
fn roll_forward_many(s: &mut Script, _: u64) {
    let dir = s.dir(ROOT, "d");
    s.sync();
    for i in 0..60 {
        let file = s.full(dir, &format!("f{i:02}"), 1 + i % 3);
        match i % 4 {
            0 => s.fsync(file),
            1 => s.fdatasync(file),
            2 => s.truncate(file, 10),
            _ => s.unlink(dir, &format!("f{i:02}")),
        }
    }
}

/// Fsyncs between changes of the names that they must make durable.
fn roll_forward_names(s: &mut Script, _: u64) {
    let dirs = [s.dir(ROOT, "a"), s.dir(ROOT, "b")];
    s.full(dirs[0], "f", 2);
    s.sync();
    // A new file takes the name of a file that keeps another name.
    s.rename((dirs[0], "f"), (dirs[0], "g"));
    let new = s.full(dirs[0], "f", 1);
    s.fsync(new);
    // A new file takes the name of a file that is gone.
    s.unlink(dirs[0], "g");
    let next = s.full(dirs[0], "g", 1);
    s.fsync(next);
    s.rename((dirs[0], "f"), (dirs[1], "f"));
    s.fsync(new);
    s.exchange((dirs[1], "f"), (dirs[0], "g"));
    s.append(next, 100);
    s.fdatasync(next);
    // A new directory and its file, and a file in a directory that has moved.
    let below = s.dir(dirs[1], "below");
    let deep = s.full(below, "deep", 1);
    s.fsync(deep);
    s.rename((dirs[1], "below"), (ROOT, "above"));
    let moved = s.full(below, "moved", 1);
    s.fsync(moved);
    s.op(Op::Link { node: moved, dir: ROOT, name: "second".into() });
    s.append(moved, 10);
    s.fsync(moved);
    s.unlink(below, "moved");
    s.append(moved, 10);
    s.fsync(moved);
    // A name made, fsynced, removed and made again between two checkpoints.
    for _ in 0..3 {
        let again = s.full(ROOT, "again", 1);
        s.fsync(again);
        s.unlink(ROOT, "again");
    }
    s.run_background_step();
    s.rename((ROOT, "above"), (dirs[0], "above"));
    s.fsync(deep);
}

/// Everything that the recovery of one file's nodes must restore: holes, cuts, attributes, small and large.
fn roll_forward_shapes(s: &mut Script, _: u64) {
    let small = s.file(ROOT, "small");
    s.write(small, 0, 100);
    let large = s.full(ROOT, "large", 30);
    let sparse = s.file(ROOT, "sparse");
    s.sync();
    s.append(small, 50);
    s.fsync(small);
    s.append(small, 2 * s.block);
    s.fsync(small);
    s.truncate(small, 20);
    s.fsync(small);
    for at in [1, 900, 1500, 3000, 2900, 700_000] {
        s.write(sparse, at * s.block, 3 * s.block);
        s.fsync(sparse);
    }
    s.truncate(large, 10 * s.block + 1);
    s.fsync(large);
    s.write(large, 20 * s.block, s.block);
    s.fdatasync(large);
    s.op(Op::Allocate { node: large, offset: 2 * s.block, len: 5 * s.block, how: Allocate::Punch });
    s.fsync(large);
    s.op(Op::Allocate { node: large, offset: 40 * s.block, len: 6 * s.block, how: Allocate::Extend });
    s.fsync(large);
    for (name, len) in [("user.a", 30), ("user.b", 400), ("user.c", 1500)] {
        s.xattr(large, name, len);
        s.fsync(large);
    }
    s.op(Op::RemoveXattr { node: large, name: b"user.b".to_vec() });
    s.op(Op::SetPerm { node: large, perm: 0o640 });
    s.fsync(large);
    s.truncate(sparse, 1000 * s.block);
    s.fsync(sparse);
    s.truncate(sparse, 0);
    s.fsync(sparse);
}

/// Blocks of data that nearly fill the smallest volume.
const FULL: u64 = 1560;

/// A nearly full volume, overwritten here and there: every new block needs an old one.
fn churn(s: &mut Script, seed: u64) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let dir = s.dir(ROOT, "d");
    let mut files: Vec<(NodeId, String)> = Vec::new();
    for i in 0..26 {
        let name = format!("f{i}");
        files.push((s.full(dir, &name, FULL / 26), name));
    }
    s.sync();
    for i in 0..520 {
        let at = rng.random_range(0..files.len());
        match rng.random_range(0..20) {
            0 => {
                let name = format!("n{i}");
                s.unlink(dir, &files[at].1);
                files[at] = (s.full(dir, &name, FULL / 26), name);
            }
            1 => s.sync(),
            2..5 => s.fsync(files[at].0),
            5 => s.run_background_step(),
            _ => {
                let block = rng.random_range(0..FULL / 26 - 32);
                s.write(files[at].0, block * s.block, rng.random_range(1..32) * s.block);
            }
        }
    }
}

/// The volume is filled and emptied, each time in another order: segments become free between others that do not.
fn fill_and_free(s: &mut Script, _: u64) {
    let name = |round: u64, i: u64| format!("{round}.{i}");
    for round in 0..4 {
        for i in 0..30 {
            let file = s.full(ROOT, &name(round, i), if round == 0 { FULL / 30 } else { FULL / 60 });
            if i % 7 == round {
                s.fsync(file);
            }
        }
        s.sync();
        for i in (0..30).filter(|i| round == 3 || i % 2 == round % 2) {
            s.unlink(ROOT, &name(round, i));
        }
        if round > 0 {
            (0..30).filter(|i| i % 2 != (round - 1) % 2).for_each(|i| s.unlink(ROOT, &name(round - 1, i)));
        }
        s.run_background_step();
    }
}

/// Files with maps of every depth, made, changed and cut.
fn deep_map(s: &mut Script, _: u64) {
    let file = s.file(ROOT, "deep");
    for (i, at) in [0, 930, 1950, 2960, 3980, 500_000, 1_040_000, 2_080_000, 2_090_000].into_iter().enumerate() {
        s.write(file, at * s.block, 2 * s.block);
        match i % 3 {
            0 => s.sync(),
            1 => s.fsync(file),
            _ => {}
        }
    }
    for at in [2_085_000, 1_050_000, 3970, 940, 5] {
        s.truncate(file, at * s.block + 9);
        s.fsync(file);
    }
    s.write(file, 2_080_500 * s.block, s.block);
    s.unlink(ROOT, "deep");
    let next = s.full(ROOT, "next", 20);
    s.fsync(next);
    s.sync();
}

/// More unnamed files still in use than real programs have.
fn many_orphans(s: &mut Script, _: u64) {
    let mut held = Vec::new();
    for i in 0..40 {
        let name = format!("f{i}");
        let file = s.full(ROOT, &name, 2);
        s.op(Op::Hold { node: file });
        s.unlink(ROOT, &name);
        held.push(file);
    }
    let kept = s.full(ROOT, "kept", 1);
    s.fsync(kept);
    s.sync();
    for (i, file) in held.into_iter().enumerate() {
        if i % 3 == 0 {
            s.append(file, s.block);
        }
        s.op(Op::Release { node: file });
        if i % 10 == 9 {
            s.run_background_step();
            s.append(kept, 100);
            s.fsync(kept);
        }
    }
}

fn random(s: &mut Script, seed: u64) {
    let limits = Limits {
        block_size: s.block,
        file_bytes_max: 40 * s.block,
        total_bytes_max: 300 * s.block,
        sparse_bytes_max: 400 * s.block,
        nodes_max: 40,
        remounts: false,
        xattrs: true,
        symlink_bytes_max: 900,
        nanos: false,
    };
    let mut generator = Generator::new(seed, limits);
    let mut applied = 0;
    while applied < 70 {
        let op = generator.next(&s.model);
        if s.model.apply(&op).is_ok() {
            s.ops.push(op);
            applied += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_is_possible_and_promises_something() {
        for workload in ALL.into_iter().chain(LOG) {
            for block_size in [1024, 4096] {
                let ops = workload.ops(block_size, 1);
                assert!(ops.len() > 10, "{} is too short", workload.name);
            }
        }
        assert!(by_name("exchange").is_some());
    }
}
