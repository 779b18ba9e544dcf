//! The journal: before pass 0 it is replayed, or looked through; in pass 1 its inode and its superblock are checked.

use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_vfs::Error;
use moafs_vfs::types::FileKind;

use super::checker::Checker;
use super::error::CheckError;
use super::issue::Issue;
use super::report::{CheckOptions, Log, Mode};
use super::scan::Blocks;
use super::superblock;
use super::superblock::Chosen;
use crate::format::journal::{JournalSuperblock, MAGIC, SUPERBLOCK_BYTES};
use crate::format::superblock::Compat;
use crate::format::{Geometry, InodeNo, Superblock, u32_at};
use crate::journal::{self, Journal, Replay};

/// Incompatible features of a journal that are known: revoke, 64bit, asynchronous commit, checksums, fast commits.
const JOURNAL_INCOMPAT: u32 = 0x3F;

/// The state of the journal before the check.
pub(super) struct Prepared {
    /// The disk to check: for [`Mode::No`] it shows what a replay would leave.
    pub(super) disk: SharedDisk,
    pub(super) log: Log,
    /// Number of transactions that were replayed, or are shown as if they were.
    pub(super) transactions: u32,
    /// True if the volume must be checked, also if it says that it is clean.
    pub(super) must_check: bool,
    /// True if nothing can be checked before the journal is repaired.
    pub(super) is_stuck: bool,
    /// True if a copy is to take the place of the superblock.
    is_copy: bool,
}

/// Replays the journal of a volume; with [`Mode::No`] only shows what a replay would leave.
pub(super) fn prepare(disk: &SharedDisk, options: &CheckOptions) -> Result<Prepared, CheckError> {
    let log = Log { may_fix_safe: options.mode != Mode::No, may_fix_all: options.mode == Mode::Yes, ..Log::default() };
    let mut prepared =
        Prepared { disk: Arc::clone(disk), log, transactions: 0, must_check: false, is_stuck: false, is_copy: false };
    // The check itself reports what cannot be read at all, or is not checked.
    let Ok(Chosen { sb, geo, copy, .. }) = superblock::choose(&**disk, options.superblock) else { return Ok(prepared) };
    let has_journal = sb.compat().contains(Compat::HAS_JOURNAL) && !sb.has_external_journal();
    let is_left_alone = copy.is_some() && options.mode != Mode::Yes;
    if !has_journal || is_left_alone || superblock::supported(sb.clone(), geo.clone()).is_err() {
        return Ok(prepared);
    }
    // Copies do not say whether there is something to replay.
    prepared.is_copy = copy.is_some();
    let needs_replay = prepared.is_copy || journal::needs_replay(&sb);
    let (opened, sb) = prepared.open_or_find(sb, &geo)?;
    let journal = match opened {
        Ok(Some(journal)) => journal,
        Ok(None) => return Ok(prepared),
        Err(error) if needs_replay => {
            prepared.give_up(None, &sb, &geo, error)?;
            return Ok(prepared);
        }
        // Pass 1 looks at the journal as well.
        Err(Error::Damaged { .. }) => {
            prepared.must_check = true;
            return Ok(prepared);
        }
        Err(error) => return Err(error.into()),
    };
    if needs_replay || !journal.superblock().is_empty() {
        prepared.replay(journal, needs_replay, options, &sb, &geo)?;
    } else if journal.superblock().errno != 0 {
        prepared.forget_error(journal, &sb, &geo)?;
    }
    Ok(prepared)
}

impl Prepared {
    /// Opens the journal; one that the superblock does not lead to is found again. Returns the superblock that leads to
    /// it as well.
    #[allow(clippy::type_complexity)]
    fn open_or_find(
        &mut self,
        sb: Superblock,
        geo: &Geometry,
    ) -> Result<(Result<Option<Journal>, Error>, Superblock), CheckError> {
        let opened = Journal::open(&self.disk, &sb, geo);
        let Err(Error::Damaged { structure, problem, .. }) = &opened else { return Ok((opened, sb)) };
        let Some(found) = journal::find_again(&self.disk, &sb, geo)? else { return Ok((opened, sb)) };
        let problem = format!("{structure}: {problem}");
        if self.log.found(Issue::JournalInode { problem }) {
            found.write(&self.disk, geo)?;
            self.log.modified = true;
        } else {
            self.disk = found.shown(&self.disk, geo);
        }
        self.must_check = true;
        Ok((Ok(Some(found.journal)), found.superblock))
    }

    fn replay(
        &mut self,
        journal: Journal,
        needs_replay: bool,
        options: &CheckOptions,
        sb: &Superblock,
        geo: &Geometry,
    ) -> Result<(), CheckError> {
        // The kernel would drop this log: it is not replayed without being asked for.
        let start = journal.superblock().start;
        if !needs_replay && !self.log.found(Issue::JournalNotEmpty { start }) {
            self.is_stuck = options.mode == Mode::Preen;
            return Ok(());
        }
        let (replay, damage) = journal.salvage()?;
        if let Some(damage) = damage {
            return self.give_up(Some((journal, &replay)), sb, geo, damage);
        }
        self.transactions = replay.transactions;
        // Fast commits that are damaged are found before anything is written.
        let shown = match journal::shown(&self.disk, geo, &journal, &replay) {
            Err(damage @ Error::Damaged { .. }) => return self.give_up(Some((journal, &replay)), sb, geo, damage),
            shown => shown?,
        };
        if options.mode != Mode::No {
            let (journal, replay) = journal::log_fast_commits(&self.disk, geo, journal, replay)?;
            self.transactions = replay.transactions;
            return self.write_home(journal, &replay, sb, geo);
        }
        if !journal.superblock().is_empty() {
            self.log.note(Issue::JournalNotReplayed { transactions: replay.transactions }, false);
        }
        self.disk = shown;
        Ok(())
    }

    fn write_home(
        &mut self,
        mut journal: Journal,
        replay: &Replay,
        sb: &Superblock,
        geo: &Geometry,
    ) -> Result<(), CheckError> {
        let errno = journal.superblock().errno;
        journal.write_home(replay)?;
        self.log.modified = true;
        if errno == 0 {
            return self.say_replayed(sb, geo, false);
        }
        self.forget_error(journal, sb, geo)
    }

    /// Moves the error that the last user of the journal left to the volume, which is then checked.
    fn forget_error(&mut self, mut journal: Journal, sb: &Superblock, geo: &Geometry) -> Result<(), CheckError> {
        let errno = journal.superblock().errno;
        if self.log.found(Issue::JournalError { errno }) {
            journal.forget_error()?;
            self.say_replayed(sb, geo, true)?;
        }
        self.must_check = true;
        Ok(())
    }

    fn say_replayed(&self, sb: &Superblock, geo: &Geometry, has_errors: bool) -> Result<(), CheckError> {
        if self.is_copy {
            return Ok(());
        }
        Ok(journal::say_replayed(&self.disk, sb, geo, has_errors)?)
    }

    /// Drops a log that is damaged, or in a journal that cannot be opened. The transactions before the damage are
    /// replayed; what later ones held is lost.
    fn give_up(
        &mut self,
        part: Option<(Journal, &Replay)>,
        sb: &Superblock,
        geo: &Geometry,
        error: Error,
    ) -> Result<(), CheckError> {
        let Error::Damaged { structure, problem, .. } = error else { return Err(error.into()) };
        let transactions = part.as_ref().map_or(0, |(_, replay)| replay.transactions);
        let problem = format!("{structure}: {problem}");
        let fix = self.log.found(Issue::JournalDamaged { problem, transactions });
        if fix {
            if let Some((mut journal, replay)) = part {
                journal.write_home(replay)?;
                journal.drop_log()?;
            }
            self.transactions = transactions;
            self.say_replayed(sb, geo, true)?;
        }
        self.must_check = fix;
        self.is_stuck = self.log.may_fix_safe && !fix;
        Ok(())
    }
}

impl Checker<'_> {
    /// Checks the journal. If it cannot be used, there is nothing to replay, or the check would
    /// have been refused: it is given up.
    pub(super) fn check_journal(&mut self) -> Result<(), CheckError> {
        if !self.superblock.compat().contains(Compat::HAS_JOURNAL) {
            return Ok(());
        }
        let Some(problem) = self.journal_problem()? else { return self.check_journal_inode() };
        if self.log.found(Issue::Journal { problem }) {
            let without = self.superblock.compat().difference(Compat::HAS_JOURNAL);
            self.superblock.set_compat(without);
            self.superblock.set_journal_inum(0);
            self.superblock.clear_external_journal();
            self.clear_inode(InodeNo::JOURNAL)?;
        }
        Ok(())
    }

    /// Corrects the inode of a journal that is sound in all else: it is no deleted file, and not longer than any file.
    /// A journal that has a name is looked at with the other files.
    fn check_journal_inode(&mut self) -> Result<(), CheckError> {
        let inode = InodeNo::JOURNAL;
        if self.superblock.journal_inum() != inode.0 {
            return Ok(());
        }
        let (_, stored) = self.read_inode(inode)?;
        if stored.links == 0 && self.log.found(Issue::LinkCount { inode, stored: 0, counted: 1 }) {
            self.change_inode(inode, |inode| inode.links = 1)?;
        }
        let should =
            self.dense_blocks(&stored)?.map_or(0, |blocks| blocks.len()) as u64 * u64::from(self.geo.block_size);
        if stored.size > self.size_max(&stored) && self.log.found(Issue::Size { inode, stored: stored.size, should }) {
            self.change_inode(inode, |inode| inode.size = should)?;
        }
        Ok(())
    }

    fn journal_problem(&self) -> Result<Option<String>, CheckError> {
        // A journal that was added while the volume was mounted is a file with a name.
        let ino = InodeNo(self.superblock.journal_inum());
        let has_name = (self.geo.first_ino..=self.geo.inodes).contains(&ino.0);
        if ino != InodeNo::JOURNAL && !has_name {
            return Ok(Some(format!("s_journal_inum is {ino}, should be {}", InodeNo::JOURNAL)));
        }
        let (_, inode) = self.read_inode(ino)?;
        if inode.kind() != Some(FileKind::Regular) || (has_name && inode.links == 0) {
            return Ok(Some(format!("inode {ino}: i_mode is {:#o}, should be that of a file in use", inode.mode)));
        }
        let blocks = inode.size.div_ceil(self.geo.block_size.into());
        let dense = self.dense_blocks(&inode)?.unwrap_or_default();
        // A size beyond the map does no harm: s_maxlen says how much of it is used.
        let blocks = if dense.is_empty() { blocks } else { blocks.min(dense.len() as u64) };
        if dense.len() as u64 != blocks || blocks == 0 {
            return Ok(Some(format!("inode {ino}: the map has {} blocks in a row, should be {blocks}", dense.len())));
        }
        let page = self.volume.read(dense[0])?;
        let be = |at: usize| u32_at(&page, at).swap_bytes();
        if be(0) != MAGIC {
            return Ok(Some("its first block has another magic".to_owned()));
        }
        let fields = [
            ("h_blocktype", be(4), [3, 4].contains(&be(4))),
            ("s_blocksize", be(12), be(12) == self.geo.block_size),
            ("s_maxlen", be(16), u64::from(be(16)) <= blocks),
            ("s_feature_incompat", be(40), be(4) == 3 || be(40) & !JOURNAL_INCOMPAT == 0),
            ("s_feature_ro_compat", be(44), be(4) == 3 || be(44) == 0),
            ("s_nr_users", be(64), be(4) == 3 || be(64) <= 1),
        ];
        if let Some((field, stored, _)) = fields.into_iter().find(|(_, _, is_right)| !is_right) {
            return Ok(Some(format!("{field} is {stored}")));
        }
        let decoded = JournalSuperblock::decode(&page[..SUPERBLOCK_BYTES], self.geo.block_size, blocks);
        Ok(decoded.err().map(|damage| damage.problem))
    }
}
