//! The workloads that the file systems run. Each workload prepares a volume, and is measured from a
//! cold cache to the end of its sync.
//!
//! All of them are plain system calls of one program, or of two at the same time, drawn from a seed: the same for every
//! file system. Names are visited in the order the workload made them, or in the order the directory
//! lists them where the tool it stands for does so.

mod environment;
mod large_files;
mod pool;
mod small_files;
#[cfg(test)]
mod testing;
mod tree;

use moafs_workload::Sizes;

use crate::error::Result;

pub(crate) use environment::Environment;

/// Declares the workloads: name in results, and what is done at full scale.
macro_rules! workloads {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $does:literal;)*) => {
        /// A workload of the comparison.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Workload {
            $($(#[$doc])* $variant,)*
        }

        impl Workload {
            /// All workloads of the comparison.
            pub const ALL: &[Workload] = &[$(Workload::$variant,)*];

            /// Returns the name used in results.
            pub fn name(self) -> &'static str {
                match self {
                    $(Workload::$variant => $name,)*
                }
            }

            /// Describes in one line the work at full scale.
            pub fn describe(self) -> &'static str {
                match self {
                    $(Workload::$variant => $does,)*
                }
            }
        }
    };
}

workloads! {
    /// Small files created directory by directory, then one sync.
    Create = "create", "20 directories x 500 files of R-FSL's sizes up to 16 KiB, created in order; one sync";
    /// Small files created in random directories, then one sync.
    CreateRandom = "create-random", "as many files of such sizes, each in a directory drawn for it; one sync";
    /// Two clients that create.
    CreateTwo = "create-two", "create by two clients at once, each with all of it in a directory of its own";
    /// Postmark with R-FSL's sizes, then a sync.
    Postmark = "postmark",
        "25,000 files (R-FSL) in 200 directories, created directory by directory, then 50,000 transactions (read or append \
         4 KiB, and create or delete); one sync";
    /// Postmark with sizes of 512 bytes to 10 KB.
    PostmarkFsl = "postmark-fsl", "the same with files of 512 B to 10 KB";
    /// Two clients that run Postmark.
    PostmarkTwo = "postmark-two", "postmark-fsl by two clients at once, each in a directory of its own";
    /// A tree unpacked as tar does it, then a sync.
    Untar = "untar", "60 directories, 3,000 files (R-FSL), each written, chmod, utimes, as tar -x does; one sync";
    /// Two clients that unpack.
    UntarTwo = "untar-two", "untar by two clients at once, each in a directory of its own";
    /// A tree copied to another place of the same volume, then a sync.
    Copy = "copy", "the tree of untar copied on the same volume, read and written in the order directories list; one sync";
    /// Small files written anew in place, in random order, then a sync.
    Overwrite = "overwrite", "the files of create written anew in place, same size, in random order; one sync";
    /// The same, but truncated first, as editors and shells do it.
    Replace = "replace", "the same with O_TRUNC at each open; one sync";
    /// Blocks of a large file written in random order, then one fsync.
    Rewrite = "rewrite", "4,096 single blocks of a file of 64 MiB overwritten at random; one fsync";
    /// Large files that grow in turn, then a sync.
    Append = "append", "20 files that grow in turn by 64 KiB at a time to 16 MB each; one sync";
    /// A tree removed, then a sync.
    Delete = "delete", "the tree of untar removed in the order directories list it (rm -r); one sync";
    /// Small files removed by name, then a sync.
    Remove = "remove", "the files of create removed in the order of their names; one sync";
    /// Small files of which only the attributes are read.
    Stat = "stat", "the attributes of the files of create, in the order directories list them (ls -l)";
    /// Small files read in order.
    Read = "read", "the files of create read in the order of their names";
    /// Small files read at random.
    ReadRandom = "read-random", "the files of create read in random order";
    /// A tree read.
    ReadTree = "read-tree", "the tree of untar read in the order directories list it (tar -c)";
    /// All files of every directory read, after aging.
    AgedRead = "aged-read",
        "50 directories x 60 files (R-FSL up to 256 KiB), aged by deleting, creating and appending 4 x their bytes with 100 \
         syncs on the way; then every file read, directory by directory, in the order of names";
    /// Small files created one by one, each with an fsync.
    Fsync = "fsync", "500 files of R-FSL's sizes up to 16 KiB in one directory, each created, written, fsynced";
    /// Two clients that sync each file.
    FsyncTwo = "fsync-two", "fsync by two clients at once, each in a directory of its own";
}

impl Workload {
    /// Makes the files that the volume holds before the measurement begins.
    pub(crate) fn prepare(self, env: &Environment<'_>) -> Result<()> {
        match self {
            Workload::Create | Workload::CreateRandom | Workload::CreateTwo => Ok(()),
            Workload::Postmark | Workload::PostmarkFsl | Workload::PostmarkTwo => Ok(()),
            Workload::Untar | Workload::UntarTwo | Workload::Append | Workload::Fsync | Workload::FsyncTwo => Ok(()),
            Workload::Overwrite | Workload::Replace | Workload::Remove => small_files::create(env).map(drop),
            Workload::Stat | Workload::Read | Workload::ReadRandom => small_files::create(env).map(drop),
            Workload::Copy | Workload::Delete | Workload::ReadTree => tree::untar(env).map(drop),
            Workload::Rewrite => large_files::prepare_rewrite(env),
            Workload::AgedRead => pool::age(env),
        }
    }

    /// Runs the measured part but for the last sync. Returns the bytes of file data that the disk
    /// must move for it.
    pub(crate) fn run(self, env: &Environment<'_>) -> Result<u64> {
        match self {
            Workload::Create => small_files::create(env),
            Workload::CreateRandom => small_files::create_at_random(env),
            Workload::CreateTwo => env.by_two(small_files::create),
            Workload::Postmark => pool::postmark(env, Sizes::R_FSL),
            Workload::PostmarkFsl => pool::postmark(env, Sizes::FSL),
            Workload::PostmarkTwo => env.by_two(|env| pool::postmark(env, Sizes::FSL)),
            Workload::Untar => tree::untar(env),
            Workload::UntarTwo => env.by_two(tree::untar),
            Workload::Copy => tree::copy(env, &tree::root(env), &env.path("copy")),
            Workload::Overwrite => small_files::overwrite(env, false),
            Workload::Replace => small_files::overwrite(env, true),
            Workload::Rewrite => large_files::rewrite(env),
            Workload::Append => large_files::append(env),
            Workload::Delete => tree::delete(env, &tree::root(env)).map(|()| 0),
            Workload::Remove => small_files::remove(env).map(|()| 0),
            Workload::Stat => small_files::stat_all(env, env.root).map(|()| 0),
            Workload::Read => small_files::read(env),
            Workload::ReadRandom => small_files::read_at_random(env),
            Workload::ReadTree => tree::read(env, &tree::root(env), &mut vec![0; environment::COPY_BYTES]),
            Workload::AgedRead => pool::read_aged(env),
            Workload::Fsync => small_files::create_and_fsync(env),
            Workload::FsyncTwo => env.by_two(small_files::create_and_fsync),
        }
    }

    /// Returns true if the time of syncing single files is measured: that is reported, and no speed is wanted of it.
    pub fn syncs_each_file(self) -> bool {
        matches!(self, Workload::Fsync | Workload::FsyncTwo)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{files_below, on_the_host};
    use super::*;
    use crate::error::PeersError;
    use crate::machine::Interrupt;

    #[test]
    fn every_workload_runs_on_what_it_prepares() {
        for &workload in Workload::ALL {
            on_the_host(|env| {
                workload.prepare(env).unwrap();
                let bytes = workload.run(env).unwrap();
                let moves_data = !matches!(workload, Workload::Delete | Workload::Remove | Workload::Stat);
                assert_eq!(bytes > 0, moves_data, "{}", workload.name());
            });
        }
    }

    #[test]
    fn two_clients_do_twice_the_work() {
        on_the_host(|env| {
            Workload::UntarTwo.run(env).unwrap();
            assert_eq!(files_below(env.root), 60);
        });
    }

    #[test]
    fn an_interrupt_ends_a_workload() {
        on_the_host(|env| {
            let interrupt = Interrupt::raised();
            let env = Environment { interrupt: &interrupt, ..*env };
            for workload in [Workload::Create, Workload::CreateTwo] {
                assert!(matches!(workload.run(&env), Err(PeersError::Interrupted)));
            }
        });
    }
}
