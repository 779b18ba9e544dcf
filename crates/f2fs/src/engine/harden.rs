//! fsync without a checkpoint: a file's nodes in a chain that recovery follows (sheet section 13).
//!
//! The data are durable first, then the file's dirty direct nodes go to the warm node log, the last one (the inode, if it is among
//! them) with a mark, then the device is flushed. Recovery walks that log from where the last checkpoint left it. Nodes
//! of nodes are not written: recovery makes them from the others' offsets.
//!
//! Only what such a chain can say may leave this way ([`F2fs::chain_suffices`]); for everything else a checkpoint is written.

use moafs_disk::Epoch;
use moafs_vfs::Result;
use moafs_vfs::format::Seal;
use moafs_vfs::types::FileKind;

use super::F2fs;
use super::checkpoint::{Leaving, Writer};
use super::incore::Incore;
use crate::format::checkpoint::CpFlags;
use crate::format::inode::Advise;
use crate::format::{Log, Nid};

/// Which changes since the last picture a chain cannot tell.
#[derive(Debug, Default)]
pub(super) struct Untold {
    /// Inodes that the last checkpoint does not have.
    pub(super) fresh: std::collections::BTreeSet<Nid>,
    /// Inodes of which a name, an attribute or a whole node has gone or changed.
    pub(super) tangled: std::collections::BTreeSet<Nid>,
}

impl F2fs {
    /// Makes a file durable up to `upto`, its data up to `data`.
    pub(super) fn harden_file(&self, file: &Incore, upto: Seal, data: Epoch) -> Result<()> {
        if self.reaches(upto) {
            return self.make_durable(data);
        }
        let mut writer = self.writer.lock();
        if self.reaches(upto) {
            return self.make_durable(data);
        }
        if !self.chain_suffices(file, &writer)? {
            return self.checkpoint_as(&mut writer, false);
        }
        self.make_durable(data)?;
        let written = self.write_chain(file, &mut writer);
        if let Err(error) = &written {
            // What follows in the log could not be reached.
            self.health.fail(format!("a file's nodes could not be written: {error}"));
        }
        written
    }

    /// True if recovery can tell from the file's own nodes what has happened to it since the last checkpoint.
    fn chain_suffices(&self, file: &Incore, writer: &Writer) -> Result<bool> {
        if file.kind != FileKind::Regular || writer.chain_broken || writer.last.flags.contains(CpFlags::UMOUNT) {
            return Ok(false);
        }
        let inode = self.inode(file)?;
        let untold = self.untold.lock();
        let name_is_known = !untold.tangled.contains(&file.ino);
        let found = untold.fresh.contains(&inode.pino) || untold.tangled.contains(&inode.pino);
        Ok(inode.links == 1 && !inode.advise.contains(Advise::LOST_PINO) && name_is_known && !found)
    }

    fn write_chain(&self, file: &Incore, writer: &mut Writer) -> Result<()> {
        let blocks = {
            let _gate = self.gate.write();
            self.tick();
            self.chain_of(file, writer)?
        };
        if !blocks.is_empty() {
            self.write_blocks(blocks)?;
        }
        self.flush()
    }

    /// The file's dirty direct nodes, sealed, the last one marked.
    fn chain_of(&self, file: &Incore, writer: &mut Writer) -> Result<Vec<Leaving>> {
        let nodes = self.nodes.take_dirty_of(file.ino, Log::WarmNode);
        let version = writer.last.node_version();
        let fresh = self.untold.lock().fresh.contains(&file.ino);
        let mut blocks = Vec::with_capacity(nodes.len());
        for (at, node) in nodes.iter().enumerate() {
            let last = at + 1 == nodes.len();
            let dentry = fresh && node.nid == file.ino;
            blocks.push(self.seal(node, version, last, dentry)?);
        }
        writer.chain_broken |= self.space.head(Log::WarmNode).is_none();
        Ok(blocks)
    }
}
