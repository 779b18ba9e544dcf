//! The state that the writer of checkpoints and chains keeps between them.

use std::collections::BTreeMap;

use crate::format::Segno;
use crate::format::checkpoint::{Checkpoint, VersionBitmap};
use crate::format::sit::SitEntry;

/// The state that is needed to write checkpoints and chains; its lock admits one writer at a time.
pub(super) struct Writer {
    /// The last durable checkpoint.
    pub(super) last: Checkpoint,
    /// The number (0 or 1) of the pack that holds it.
    pub(super) pack: u32,
    /// SIT entries that are only in its journal.
    pub(super) sit_journal: BTreeMap<Segno, SitEntry>,
    pub(super) sit_versions: VersionBitmap,
    pub(super) kib_written: u64,
    /// True if the last durable checkpoint was written since the volume was opened.
    pub(super) own: bool,
}
