//! Changing a volume that is not in use: what its superblock says, and a journal for a volume without one.
//!
//! All changes are checked before the first is written. What the superblock names reaches the disk before it; then come
//! its copies, and last the primary superblock. Blocks of a journal that it does not name when the power is cut are a
//! leak, which a check finds.

mod error;
mod journal;
#[cfg(test)]
mod tests;

use moafs_disk::{Buf, Kind, Lba, Op, Request, SharedDisk, Tag};
use moafs_runtime::Timestamp;
use moafs_vfs::Error;

use crate::format::superblock::{Incompat, LABEL_BYTES, RoCompat, State, Support};
use crate::format::{Checksums, Geometry, GroupNo, Superblock};
use crate::head::{geometry_of, read_superblock, write_superblock};
use crate::write::write_durably;

pub use error::TuneError;

/// A change of a volume.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The label: at most 16 bytes.
    Label(Vec<u8>),
    /// The UUID.
    Uuid([u8; 16]),
    /// The blocks that only root, or the user and group that the volume names, may use.
    Reserve(Reserve),
    /// The kernel's behaviour when it finds an error.
    OnErrors(OnErrors),
    /// A journal for a volume without one: of so many bytes, or as many as a new volume of this size would get.
    AddJournal(Option<u64>),
}

/// Blocks kept for root.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reserve {
    /// A number of blocks.
    Blocks(u64),
    /// A share of all blocks, in percent.
    Percent(f64),
}

/// The kernel's behaviour when it finds an error on the volume (`s_errors`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnErrors {
    /// Goes on.
    Continue = 1,
    /// Lets no more changes in.
    RemountReadOnly = 2,
    /// Halts the machine.
    Panic = 3,
}

/// The largest share of blocks kept for root, in percent: as in tune2fs(8).
const RESERVE_PERCENT_MAX: f64 = 50.0;

/// Changes a volume that nothing else uses. `now` is the time of the change.
///
/// # Errors
/// If the volume was not unmounted in order, or a change cannot be made on it: then nothing is written. Damage, and
/// device errors.
pub fn tune(disk: &SharedDisk, changes: &[Change], now: Timestamp) -> Result<(), TuneError> {
    let before = read_superblock(disk)?;
    let geo = geometry_of(&before, disk)?;
    check_at_rest(&before)?;
    let (mut sb, mut on_disk) = (before.clone(), before);
    // A journal is written while the others are only noted: it comes last.
    let (journals, fields): (Vec<_>, Vec<_>) =
        changes.iter().partition(|change| matches!(change, Change::AddJournal(_)));
    fields.into_iter().try_for_each(|change| set(&mut sb, &geo, change))?;
    for change in journals {
        if let Change::AddJournal(bytes) = change {
            (sb, on_disk) = journal::add(disk, sb, &on_disk, &geo, *bytes, now)?;
        }
    }
    sb.set_wtime(now.secs as u32);
    write_copies(disk, &sb, &geo)?;
    write_superblock(disk, &on_disk, &sb, &geo).map_err(TuneError::from)
}

/// Returns an error if a journal has to be replayed, or the volume may have errors: a replay or a repair could undo the
/// change.
fn check_at_rest(sb: &Superblock) -> Result<(), TuneError> {
    if let Support::Refuse(reasons) = sb.support(false) {
        return Err(TuneError::Impossible(reasons.to_string()));
    }
    if sb.incompat().contains(Incompat::NEEDS_RECOVERY) {
        return Err(TuneError::NotAtRest("has a journal to replay"));
    }
    if sb.state().contains(State::ERROR) {
        return Err(TuneError::NotAtRest("has errors"));
    }
    if !sb.state().contains(State::VALID) || sb.last_orphan() != 0 || sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT)
    {
        return Err(TuneError::NotAtRest("was not unmounted in order"));
    }
    Ok(())
}

/// Sets what a change changes in the superblock.
fn set(sb: &mut Superblock, geo: &Geometry, change: &Change) -> Result<(), TuneError> {
    match change {
        Change::Label(label) if label.len() > LABEL_BYTES => {
            let problem = format!("a label has at most {LABEL_BYTES} bytes, this one has {}", label.len());
            return Err(TuneError::Impossible(problem));
        }
        Change::Label(label) => sb.set_label(label),
        Change::Uuid(uuid) => set_uuid(sb, *uuid)?,
        Change::Reserve(reserve) => sb.set_reserved_blocks(reserved_blocks(geo, *reserve)?),
        Change::OnErrors(behaviour) => sb.set_errors(*behaviour as u16),
        Change::AddJournal(_) => unreachable!("journals are added by their own module"),
    }
    Ok(())
}

/// Sets the UUID. Checksums begin with it unless the superblock stores their seed: so it stores the seed from now on.
fn set_uuid(sb: &mut Superblock, uuid: [u8; 16]) -> Result<(), TuneError> {
    match sb.checksums() {
        Checksums::Absent => {}
        Checksums::All { seed } => {
            sb.set_checksum_seed(seed);
            sb.set_incompat(sb.incompat() | Incompat::METADATA_CSUM_SEED);
        }
        Checksums::Descriptors { .. } => {
            return Err(TuneError::Impossible(
                "the checksums of the group descriptors depend on the UUID (feature uninit_bg): change it with \
                 `tune2fs -U`"
                    .to_owned(),
            ));
        }
    }
    sb.set_uuid(uuid);
    Ok(())
}

fn reserved_blocks(geo: &Geometry, reserve: Reserve) -> Result<u64, TuneError> {
    let most = (geo.blocks as f64 * RESERVE_PERCENT_MAX / 100.0) as u64;
    match reserve {
        Reserve::Percent(percent) if (0.0..=RESERVE_PERCENT_MAX).contains(&percent) => {
            Ok((geo.blocks as f64 * percent / 100.0) as u64)
        }
        Reserve::Blocks(blocks) if blocks <= most => Ok(blocks),
        Reserve::Percent(_) | Reserve::Blocks(_) => Err(TuneError::Impossible(format!(
            "at most {RESERVE_PERCENT_MAX} % of the volume can be kept for root: {most} blocks"
        ))),
    }
}

/// Writes the copies of the superblock, durably.
fn write_copies(disk: &SharedDisk, sb: &Superblock, geo: &Geometry) -> Result<(), Error> {
    let write = |group: GroupNo| Request {
        op: Op::Write { data: vec![Buf::copy_of(sb.copy_of_group(group).as_bytes()).freeze()], fua: false },
        at: Lba::from_byte(geo.byte_of(geo.group_start(group))),
        tag: Tag::volume(Kind::Superblock),
    };
    write_durably(disk, geo.groups_with_copies().map(write).collect(), "flushing the copies of the superblock")
}
