//! Calls that lock several directories, beside each other: none may hold a lock that another waits for in a circle.

use std::sync::Arc;

use moafs_runtime::preempt::{Config, Strategy};
use moafs_runtime::{Preemptive, Task};
use moafs_testkit::family::{Ext, Ext4, F2fs, Family};
use moafs_testkit::tests_of;
use moafs_vfs::api::{NewFile, RenameMode};
use moafs_vfs::types::{FileKind, Ino};
use moafs_vfs::{Credentials, Format, Result, Vfs};

use super::{check, each_seed, name_of, play, volume};

tests_of!(
    [ext: Ext, ext4: Ext4, f2fs: F2fs]
    [a_file_over_a_directory_in_use, a_circle_of_three_directories, two_directories_of_one_parent]
);

/// Number of times that each task makes its call.
const ROUNDS: usize = 8;

/// A directory and a name in it.
type Place = (Ino, &'static str);

/// A call that locks at least two directories, and leaves the tree such that it can be made again.
#[derive(Debug, Clone, Copy)]
enum Call {
    Exchange(Place, Place),
    /// Renames a file to the name of a directory, which fails.
    Replace(Place, Place),
    /// Removes a directory that is not empty, which fails.
    Remove(Place),
}

impl Call {
    fn make<F: Format>(self, vfs: &Vfs<F>) {
        let (outcome, errno) = match self {
            Call::Exchange(from, to) => (rename(vfs, from, to, RenameMode::Exchange), None),
            Call::Replace(from, to) => (rename(vfs, from, to, RenameMode::Replace), Some(libc::EISDIR)),
            Call::Remove((dir, name)) => (vfs.rmdir(&Credentials::root(), dir, name_of(name)), Some(libc::ENOTEMPTY)),
        };
        assert_eq!(outcome.err().map(|error| error.errno()), errno, "{self:?}");
    }
}

fn rename<F: Format>(vfs: &Vfs<F>, from: Place, to: Place, mode: RenameMode) -> Result<()> {
    vfs.rename(&Credentials::root(), (from.0, name_of(from.1)), (to.0, name_of(to.1)), mode)
}

/// Makes a file or a directory in a directory.
fn make<F: Format>(vfs: &Vfs<F>, dir: Ino, name: &str, kind: FileKind) -> Ino {
    let new = NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None };
    vfs.create(&Credentials::root(), dir, name_of(name), &new).expect("create").ino
}

/// Makes directories in the root directory, each with a file of the same name; returns them by number.
fn make_dirs<F: Format>(vfs: &Vfs<F>) -> [Place; 3] {
    let mut dirs = ["a", "b", "c"].map(|name| (make(vfs, vfs.shape().root, name, FileKind::Directory), name));
    dirs.sort_unstable();
    for (dir, name) in dirs {
        make(vfs, dir, name, FileKind::Regular);
    }
    dirs
}

/// Returns the scheduler of a seed. Tasks are left so often that each may be between two of its locks.
fn scheduler(seed: u64) -> Arc<Preemptive> {
    let strategy = Strategy::RandomWalk { one_in: [1, 4, 16][(seed % 3) as usize] };
    Preemptive::new(Config { seed, strategy, point_ns: 1000, points_max: 1 << 22 })
}

/// Makes calls beside each other. `scene` gets the root directory and three others by number; it returns the directory
/// that the first of these is moved to before, and the calls.
fn beside_each_other<F: Family>(scene: fn(Ino, [Place; 3]) -> (Ino, Vec<Call>)) {
    let Some(fresh) = volume::<F>() else { return };
    each_seed(|seed| {
        let (runtime, disk) = (scheduler(seed), Arc::new(fresh.snapshot()));
        let ended = play::<F, _>(seed, &runtime, disk.clone(), move |rt, vfs| {
            let (root, dirs) = (vfs.shape().root, make_dirs(&vfs));
            let (parent, calls) = scene(root, dirs);
            let name = dirs[0].1;
            rename(&vfs, (root, name), (parent, "low"), RenameMode::NoReplace).expect("move");
            let start = |call: Call| {
                let vfs = vfs.clone();
                rt.spawn(&format!("{call:?}"), Box::new(move || (0..ROUNDS).for_each(|_| call.make(&vfs))))
            };
            let tasks: Vec<Task> = calls.into_iter().map(start).collect();
            tasks.iter().for_each(|task| task.join(&**rt));
            vfs.close().map_err(|error| error.to_string())
        });
        ended.and_then(|()| check::<F>(&disk))
    });
}

/// The directory whose name a file cannot get is itself one of the two of another rename.
fn a_file_over_a_directory_in_use<F: Family>() {
    beside_each_other::<F>(|_, [low, middle, high]| {
        (middle.0, vec![Call::Replace(high, (middle.0, "low")), Call::Exchange(low, high)])
    });
}

/// The last directory is above the first one, which has a smaller number than the middle one, and that than the last.
fn a_circle_of_three_directories<F: Family>() {
    beside_each_other::<F>(|_, [low, middle, high]| {
        (high.0, vec![Call::Exchange(high, low), Call::Exchange(low, middle), Call::Exchange(middle, high)])
    });
}

/// Two directories of one parent change their names, beside a rename from below one to the other.
fn two_directories_of_one_parent<F: Family>() {
    beside_each_other::<F>(|root, [low, middle, high]| {
        let names = Call::Exchange((root, middle.1), (root, high.1));
        (high.0, vec![names, Call::Remove((high.0, "low")), Call::Exchange(low, middle)])
    });
}
