//! The journal of a volume: where its log lies, what a replay would write, and reading the volume as if it had been
//! written.
//!
//! [`Journal::open`] finds the log. [`Journal::scan`] decides, without writing anything, which blocks a replay writes
//! home and where their contents lie in the log ([`Replay`]). [`Replayed`] is a disk that shows them in their places:
//! what reads a volume with a journal to replay goes through it, and sees what a replay would make. A writing mount and
//! the checker write the same [`Replay`] out instead ([`Journal::write_home`]), and [`Log`] appends transactions.
//!
//! Not here: which changes make up a transaction (`crate::meta`); journals on another device.
//!
//! | module | content |
//! |---|---|
//! | `backup` | finding a journal that the superblock does not lead to |
//! | `file` | [`Journal`]: where its blocks lie in the volume |
//! | `replay` | the scan of the log: which transactions count, and what they leave |
//! | `fast_commit` | what the kernel has changed since the last transaction |
//! | `overlay` | [`Replayed`], the disk that shows it |
//! | `home` | writing it out |
//! | `log` | [`Log`], which appends transactions |

mod backup;
mod fast_commit;
mod file;
mod home;
mod log;
mod overlay;
mod replay;

use std::sync::Arc;

use moafs_disk::{DiskExt, Kind, Lba, Op, Request, SharedDisk, Tag};
use moafs_vfs::{Error, Result};

use crate::format::superblock::{Incompat, State};
use crate::format::{BlockNo, Descriptor, Geometry, InodeNo, Superblock, u16_at};
use crate::head::{read_superblock, write_superblock};
use crate::write::write_durably;

pub(crate) use backup::find as find_again;
pub use file::Journal;
pub use log::Log;
pub use overlay::Replayed;
pub(crate) use overlay::put_over;
pub use replay::{Logged, Replay};

/// Returns the disk through which a volume is read whose journal has to be replayed, and the replay that it shows.
///
/// # Errors
/// [`Error::Refused`] for journals that are not supported; damage of the journal, and device errors.
pub fn read_through(disk: &SharedDisk, sb: &Superblock, geo: &Geometry) -> Result<(SharedDisk, Replay)> {
    let journal = open_to_mount(disk, sb, geo)?;
    let replay = journal.scan()?;
    Ok((shown(disk, geo, &journal, &replay)?, replay))
}

/// Returns the disk that shows what a replay would write.
///
/// # Errors
/// [`Error::Refused`] for fast commits that are not supported; damage, and device errors.
pub(crate) fn shown(disk: &SharedDisk, geo: &Geometry, journal: &Journal, replay: &Replay) -> Result<SharedDisk> {
    let replayed = Replayed::new(Arc::clone(disk), geo, journal, replay);
    if !replay.has_fast_commits {
        return Ok(Arc::new(replayed));
    }
    let changed = journal.replay_fast_commits(&(Arc::new(replayed) as SharedDisk), replay.end())?;
    Ok(Arc::new(Replayed::new(Arc::clone(disk), geo, journal, replay).with(changed)))
}

/// Makes one transaction of the fast commits that go on from the log: a scan then finds it instead of them. Returns the
/// journal, and what a replay of it writes.
///
/// # Errors
/// [`Error::Refused`] for fast commits that are not supported; damage, and device errors.
pub(crate) fn log_fast_commits(
    disk: &SharedDisk,
    geo: &Geometry,
    mut journal: Journal,
    replay: Replay,
) -> Result<(Journal, Replay)> {
    if !replay.has_fast_commits {
        return Ok((journal, replay));
    }
    let shown: SharedDisk = Arc::new(Replayed::new(Arc::clone(disk), geo, &journal, &replay));
    let changed: Vec<_> = journal.replay_fast_commits(&shown, replay.end())?.into_iter().collect();
    if changed.is_empty() {
        return Ok((journal, replay));
    }
    journal.advance(&replay)?;
    let mut log = Log::go_on(journal);
    if log.blocks_for(changed.len(), 0) > log.room() {
        return Err(Error::Refused(
            "the fast commits in the journal change more blocks than the journal holds: mount the volume once with the \
             kernel, or run e2fsck -fp on it"
                .to_owned(),
        ));
    }
    let written = log.append(&[], &changed)?;
    disk.make_durable(written).map_err(|source| Error::disk("flushing the journal", source))?;
    log.commit_at((replay.newest, 0))?;
    let journal = log.into_journal();
    let logged = journal.scan()?;
    Ok((journal, Replay { transactions: replay.transactions + logged.transactions, ..logged }))
}

/// Opens the journal of a volume that is to be mounted.
fn open_to_mount(disk: &SharedDisk, sb: &Superblock, geo: &Geometry) -> Result<Journal> {
    let refused = |problem: &str| {
        let text = format!("the journal cannot be used: {problem}; run `moafs fsck -y` on the volume");
        Error::Refused(text)
    };
    match Journal::open(disk, sb, geo) {
        Ok(Some(journal)) => Ok(journal),
        Ok(None) => Err(refused("the superblock says that it has to be replayed, and that there is none")),
        Err(error @ Error::Damaged { .. }) => Err(refused(&error.to_string())),
        Err(error) => Err(error),
    }
}

/// Opens the journal of a volume for writing, and replays it first if it `needs_replay`.
///
/// # Errors
/// [`Error::Refused`] for journals that are not supported; damage of the journal, and device errors.
pub fn recover(disk: &SharedDisk, sb: &Superblock, geo: &Geometry, needs_replay: bool) -> Result<(Log, Replay)> {
    let mut journal = open_to_mount(disk, sb, geo)?;
    if journal.superblock.end - journal.superblock.first < LOG_BLOCKS_MIN {
        return Err(Error::Refused(format!(
            "the journal has {} blocks, too few to write to: make it larger with `tune2fs -J`, or mount the volume with \
             `-o ro`",
            journal.superblock.blocks
        )));
    }
    if journal.superblock.errno != 0 {
        return Err(Error::Refused(format!(
            "the journal records that its last user gave up with error {}: run `e2fsck -fp` on the volume, or mount it with \
             `-o ro`",
            journal.superblock.errno
        )));
    }
    if !needs_replay && !journal.superblock.is_empty() {
        return Err(Error::Refused(
            "the journal holds changes, but the superblock says that it need not be replayed: run `e2fsck -f` on the \
             volume, or mount it with `-o ro`"
                .to_owned(),
        ));
    }
    let mut replay = journal.scan()?;
    if needs_replay {
        (journal, replay) = log_fast_commits(disk, geo, journal, replay)?;
        journal.write_home(&replay)?;
    }
    let wide = geo.incompat.contains(Incompat::BIT64);
    Ok((Log::begin(journal, geo.checksums.cover_all(), wide), replay))
}

/// Says in the superblock of a volume that is not mounted that its journal need not be replayed any more; and that the
/// volume has errors, if it does.
pub(crate) fn say_replayed(disk: &SharedDisk, before: &Superblock, geo: &Geometry, has_errors: bool) -> Result<()> {
    // The superblock itself may have been in the journal.
    let on_disk = read_superblock(disk).unwrap_or_else(|_| before.clone());
    let mut sb = on_disk.clone();
    sb.set_incompat(sb.incompat() - Incompat::NEEDS_RECOVERY);
    if has_errors {
        sb.set_state(sb.state() | State::ERROR);
    }
    write_superblock(disk, &on_disk, &sb, geo)
}

/// Clears the inode of a journal that the superblock does not name, durably: adding one was interrupted.
///
/// # Errors
/// Device errors.
pub(crate) fn clear_unnamed(disk: &SharedDisk, geo: &Geometry, descriptors: &[Descriptor]) -> Result<()> {
    let at = geo.locate_inode(InodeNo::JOURNAL).expect("every volume has the reserved inodes");
    let block = BlockNo(descriptors[at.group.0 as usize].inode_table.0 + u64::from(at.table_block));
    let (lba, tag) = (Lba::from_byte(geo.byte_of(block)), Tag::volume(Kind::Inodes));
    let table = disk.read(lba, geo.block_bytes(), tag);
    let mut table = table.map_err(|source| Error::disk("reading the journal's inode", source))?;
    let slot = &mut table[at.offset..at.offset + geo.inode_size as usize];
    if u16_at(slot, 0) == 0 {
        return Ok(());
    }
    slot.fill(0);
    let write = Request { op: Op::Write { data: vec![table.freeze()], fua: false }, at: lba, tag };
    write_durably(disk, vec![write], "flushing the journal's inode")
}

/// The smallest log, in blocks, that every op fits into.
const LOG_BLOCKS_MIN: u32 = 512;

/// Returns true if the volume has to be read through its journal.
pub fn needs_replay(sb: &Superblock) -> bool {
    sb.incompat().contains(Incompat::NEEDS_RECOVERY)
}
