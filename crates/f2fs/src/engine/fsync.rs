//! fsync without a checkpoint: a file's nodes in a chain that recovery follows (`docs/formats/f2fs.md`, section 13).
//!
//! The file's dirty direct nodes go to the warm node log, the last one (the inode, if it is among
//! them) with a mark. Recovery walks that log from the place where the last checkpoint left it.
//! Indirect nodes are not written: recovery makes them from the others' offsets.
//!
//! A device may tear a block between its sectors, and nodes carry no checksum. So they are written
//! twice: first, with the data, such that their footers belong to no chain; then, when all that is
//! durable, once more with their true footers. The two differ in the last sector only, so a torn
//! write leaves one or the other.
//!
//! Only changes that such a chain can describe may be written this way ([`F2fs::chain_suffices`]);
//! for everything else a checkpoint is written.

use moafs_disk::Epoch;
use moafs_vfs::Result;
use moafs_vfs::format::CommitPoint;
use moafs_vfs::full_host::wait_for_host;
use moafs_vfs::types::FileKind;

use super::checkpoint::tag_of;
use super::convert::copy_of;
use super::incore::Incore;
use super::underway::Underway;
use super::volume::F2fs;
use super::writer::{Bytes, Leaving, Unfinished, Writer};
use crate::format::checkpoint::CpFlags;
use crate::format::inode::Advise;
use crate::format::node::Footer;
use crate::format::{Log, Nid};

impl F2fs {
    /// Syncs a file: makes its changes durable up to `upto`, its data up to `data`.
    pub(super) fn sync_file(&self, file: &Incore, upto: CommitPoint, data: Epoch) -> Result<()> {
        if self.reaches(upto) {
            return self.make_durable(data);
        }
        wait_for_host(&self.rt, || self.sync_file_as(&mut self.writer.lock(), file, upto, data))
    }

    fn sync_file_as(&self, writer: &mut Writer, file: &Incore, upto: CommitPoint, data: Epoch) -> Result<()> {
        let _watch = self.health.watch_panics("an fsync");
        // The checkpoint that held the lock may not be finished, or have failed. The changes that a chain cannot
        // describe were to be in it, and are recorded nowhere else.
        if !self.reaches(upto) {
            self.finish(writer)?;
        }
        if self.reaches(upto) {
            return self.make_durable(data);
        }
        let begun = self.begin_chain(file, writer);
        if let Err(error) = &begun {
            // The nodes that follow in the log could not be reached by recovery.
            self.health.fail(format!("a file's nodes could not be written: {error}"));
        }
        match begun? {
            None => self.checkpoint_as(writer, false),
            Some(chain) if chain.last.is_empty() => self.make_durable(data),
            Some(chain) => {
                writer.unfinished = Some(chain);
                self.finish(writer)
            }
        }
    }

    /// True if recovery can learn from the file's own nodes everything that has happened to it
    /// since the last checkpoint.
    fn chain_suffices(&self, file: &Incore, writer: &Writer) -> Result<bool> {
        if file.kind != FileKind::Regular || writer.last.flags.contains(CpFlags::UMOUNT) {
            return Ok(false);
        }
        // The log may go on into blocks of a chain that an earlier mount wrote behind the same
        // checkpoint, and that recovery did not reach: it would take them for the rest of this one.
        if !writer.own {
            return Ok(false);
        }
        let inode = self.inode(file)?;
        let roll_forward_limits = self.roll_forward_limits.lock();
        let name_is_known = !roll_forward_limits.needs_checkpoint.contains(&file.ino);
        let parent_is_known = !roll_forward_limits.new_inodes.contains(&inode.pino)
            && !roll_forward_limits.needs_checkpoint.contains(&inode.pino);
        let name_is_free = !roll_forward_limits.new_inodes.contains(&file.ino)
            || !roll_forward_limits.dirs_with_removed_names.contains(&inode.pino);
        let one_name = inode.links == 1 && !inode.advise.contains(Advise::LOST_PINO);
        let is_told = one_name && name_is_known && parent_is_known && name_is_free;
        Ok(is_told && self.space.has_room_to_roll_forward())
    }

    /// Takes a file's chain; `None` if it would not suffice, or if there is no room for it beside what the next
    /// checkpoint needs.
    fn begin_chain(&self, file: &Incore, writer: &Writer) -> Result<Option<Unfinished>> {
        let chain = {
            let _gate = self.gate.write();
            // An op may have failed while this waited for it.
            self.health.check()?;
            // Behind the gate: an op in between may give the file another name, and the chain would tell its link
            // count without it.
            if !self.chain_suffices(file, writer)? {
                return Ok(None);
            }
            self.tick();
            self.chain_of(file, writer)?
        };
        let Some((underway, mut blocks)) = chain else { return Ok(None) };
        blocks.sort_by_key(|block| block.at);
        let first = blocks.iter().map(|block| self.unchained(block)).collect();
        Ok(Some(Unfinished { first, last: blocks, pack: None, _held: underway.hand_over() }))
    }

    /// Returns the file's dirty direct nodes with their final images, the last one marked; `None`
    /// without room for them.
    fn chain_of(&self, file: &Incore, writer: &Writer) -> Result<Option<(Underway<'_>, Vec<Leaving>)>> {
        let nodes = self.nodes.dirty_of(file.ino, Log::WarmNode);
        let nids: Vec<Nid> = nodes.iter().map(|node| node.nid).collect();
        let fresh = self.roll_forward_limits.lock().new_inodes.contains(&file.ino);
        let names = u64::from(fresh && nids.contains(&file.ino));
        let Some(places) = self.space.take_chain(&nids, names) else { return Ok(None) };
        let underway = Underway::of(self, nodes);
        let nodes = underway.nodes();
        let version = writer.last.node_version();
        let mut blocks = Vec::with_capacity(nodes.len());
        for (at, (node, place)) in nodes.iter().zip(places).enumerate() {
            let last = at + 1 == nodes.len();
            let dentry = fresh && node.nid == file.ino;
            let placed = self.place_node(node, place)?;
            let image = self.image_of(&placed, version, last, dentry);
            blocks.push(Leaving { at: placed.at, bytes: Bytes::Block(image), tag: tag_of(&placed) });
        }
        Ok(Some((underway, blocks)))
    }

    /// Returns the same node with a footer that belongs to no chain.
    fn unchained(&self, block: &Leaving) -> Leaving {
        let mut image = copy_of(&self.page_of(block));
        Footer { cp_version: Footer::NO_CHAIN, ..Footer::decode(&image) }.encode_into(&mut image);
        Leaving { at: block.at, bytes: Bytes::Block(image.freeze()), tag: block.tag }
    }
}
