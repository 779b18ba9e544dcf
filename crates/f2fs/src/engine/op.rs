//! Ops: changes in memory, each contained as a whole in one checkpoint.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use moafs_disk::{Buf, Epoch};
use moafs_runtime::Timestamp;
use moafs_runtime::lock::ReadGuard;
use moafs_vfs::format::{Admission, CommitPoint, FormatOp, OpKind, Progress, Target};
use moafs_vfs::types::{Attr, BlockRun, FileKind, Ino, Lbn, LbnRange, Name, SetMode, XattrKey};
use moafs_vfs::{Error, Result};

use super::incore::{Incore, put_attr};
use super::space::Ticket;
use super::volume::F2fs;
use crate::format::inode::{Advise, Extra, Inline, Inode, InodeFlags};
use crate::format::superblock::Features;
use crate::format::{BLOCK, Nid, inode};
use crate::place::Heat;

/// A running op. The gate stays open for other ops, and closed to checkpoints, while it lasts.
pub struct F2fsOp<'a> {
    fs: &'a F2fs,
    kind: OpKind,
    admission: &'a mut Admission,
    moves_directory: bool,
    _gate: ReadGuard<'a, ()>,
    /// Given back when everything that the op has changed is counted as dirty.
    _ticket: Ticket,
}

impl<'a> F2fsOp<'a> {
    pub(super) fn new(fs: &'a F2fs, kind: OpKind, admission: &'a mut Admission, ticket: Ticket) -> F2fsOp<'a> {
        F2fsOp { _gate: fs.gate.read(), fs, kind, admission, moves_directory: false, _ticket: ticket }
    }

    /// Returns a fresh inode's fields.
    fn fresh_inode(&self, parent: &Incore, attr: &Attr, generation: u32) -> Inode {
        let fs = self.fs;
        let mut inode = Inode {
            mode: 0,
            kind: attr.kind,
            advise: Advise::empty(),
            inline: Inline::XATTR,
            uid: attr.uid,
            gid: attr.gid,
            links: attr.nlink,
            size: 0,
            blocks: 1,
            atime: attr.atime,
            ctime: attr.ctime,
            mtime: attr.mtime,
            generation,
            current_depth: 0,
            xattr_nid: Nid::NONE,
            flags: InodeFlags::empty(),
            pino: parent.ino,
            name: Box::default(),
            dir_level: 0,
            extra: fs.features.contains(Features::EXTRA_ATTR).then(|| Extra {
                isize: inode::EXTRA_ISIZE_MAX,
                inline_xattr_words: if fs.features.contains(Features::FLEXIBLE_INLINE_XATTR) {
                    inode::INLINE_XATTR_WORDS
                } else {
                    0
                },
                projid: 0,
                crtime: fs.features.contains(Features::INODE_CRTIME).then(|| attr.crtime.unwrap_or(attr.ctime)),
            }),
        };
        inode.inline.set(Inline::EXTRA_ATTR, inode.extra.is_some());
        put_attr(&mut inode, attr, 0);
        inode
    }

    fn fill(&mut self, file: &Incore, parent: &Incore, attr: &Attr, target: Option<&[u8]>) -> Result<()> {
        match attr.kind {
            FileKind::Directory => self.fs.make_directory(file, parent.ino),
            FileKind::Symlink => self.fs.store_target(file, target.unwrap_or_default(), self.admission),
            FileKind::CharDevice | FileKind::BlockDevice => {
                let (major, minor) = (libc::major(attr.rdev), libc::minor(attr.rdev));
                let layout = self.fs.layout(file);
                self.fs.change(&file.node, |bytes| layout.set_device(bytes, major, minor));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Returns the generation of a new inode: it differs from those of the files that had its number
/// before, also within a second.
fn generation_of(nid: Nid, now: Timestamp) -> u32 {
    let nanos = (now.secs as u64).wrapping_mul(1_000_000_000).wrapping_add(now.nanos.into());
    // An odd multiplier makes the upper half depend on all bits of the time.
    let mixed = nanos.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32 ^ nid.0
}

impl FormatOp for F2fsOp<'_> {
    type Node = Arc<Incore>;

    fn inode_new(&mut self, parent: &Self::Node, attr: &Attr, target: Option<&[u8]>) -> Result<(Ino, Self::Node)> {
        let fs = self.fs;
        let directory = attr.kind == FileKind::Directory;
        let node = fs.new_node(None, 0, directory, self.admission)?;
        let generation = generation_of(node.nid, fs.rt.timestamp());
        let fresh = self.fresh_inode(parent, attr, generation);
        fs.change(&node, |bytes| fresh.encode_into(bytes));
        let file = Arc::new(Incore::new(&fs.rt, node.nid, &fresh, node));
        if let Err(error) = self.fill(&file, parent, attr, target) {
            fs.unmap_range(&file, 0, None, u32::MAX)?;
            fs.free_node(&file.node)?;
            return Err(error);
        }
        if directory {
            fs.change_inode(parent, |inode| inode.links += 1)?;
        }
        fs.roll_forward_limits.lock().new_inodes.insert(file.ino);
        fs.remember(&file);
        Ok((Ino(file.ino.0.into()), file))
    }

    fn inode_put(&mut self, node: &Self::Node, attr: &Attr, disk_size: u64) -> Result<()> {
        if attr.nlink > 0 && self.fs.orphans.lock().remove(&node.ino) {
            self.fs.require_checkpoint(node);
        }
        let cuts = attr.kind == FileKind::Regular && self.fs.is_inline(node, Inline::DATA);
        if cuts {
            self.fs.check_fits_inline(node, disk_size)?;
        }
        self.fs.change_inode(node, |inode| put_attr(inode, attr, disk_size))?;
        if cuts {
            self.fs.cut_inline(node, disk_size);
        }
        Ok(())
    }

    fn inode_orphan(&mut self, node: &Self::Node, attr: &Attr) -> Result<()> {
        self.fs.change_inode(node, |inode| {
            let size = inode.size;
            put_attr(inode, attr, size);
            inode.links = 0;
        })?;
        if matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            // fsck.f2fs takes the number of a device without a name for the addresses of blocks.
            let layout = self.fs.layout(node);
            self.fs.change(&node.node, |bytes| layout.set_device(bytes, 0, 0));
        }
        self.fs.orphans.lock().insert(node.ino);
        Ok(())
    }

    fn inode_free(&mut self, node: &Self::Node) -> Result<()> {
        let fs = self.fs;
        fs.drop_attributes(node)?;
        while fs.unmap_range(node, 0, None, u32::MAX)? == Progress::More {}
        fs.free_node(&node.node)?;
        fs.orphans.lock().remove(&node.ino);
        fs.live.lock().remove(&node.ino);
        Ok(())
    }

    fn name_add(&mut self, dir: &Self::Node, name: &Name, to: Target<'_, Self::Node>) -> Result<()> {
        let fs = self.fs;
        fs.insert_name(dir, name, to.node.ino, to.kind, self.admission)?;
        let last_name = matches!(self.kind, OpKind::Create | OpKind::Rename | OpKind::Exchange);
        if self.kind != OpKind::Create {
            fs.require_checkpoint(to.node);
            self.moves_directory |= to.kind == FileKind::Directory;
        }
        let mark =
            fs.extensions.mark(name.as_bytes()).filter(|_| self.kind == OpKind::Create && to.kind == FileKind::Regular);
        fs.change_inode(to.node, |inode| {
            inode.advise.set(Advise::COLD, inode.advise.contains(Advise::COLD) || mark == Some(Heat::Cold));
            inode.advise.set(Advise::HOT, inode.advise.contains(Advise::HOT) || mark == Some(Heat::Hot));
            // A file made without a name has its first one now.
            if last_name || inode.name.is_empty() {
                inode.pino = dir.ino;
                inode.name = name.as_bytes().into();
            } else {
                inode.advise.insert(Advise::LOST_PINO);
            }
        })
    }

    fn name_point(&mut self, dir: &Self::Node, name: &Name, to: Target<'_, Self::Node>) -> Result<()> {
        let fs = self.fs;
        fs.point_name(dir, name, to.node.ino, to.kind)?;
        if name.as_bytes() == b".." {
            return fs.change_inode(dir, |inode| inode.pino = to.node.ino);
        }
        fs.require_checkpoint(to.node);
        fs.roll_forward_limits.lock().dirs_with_removed_names.insert(dir.ino);
        self.moves_directory |= to.kind == FileKind::Directory;
        fs.change_inode(to.node, |inode| {
            inode.pino = dir.ino;
            inode.name = name.as_bytes().into();
        })
    }

    fn name_remove(&mut self, dir: &Self::Node, name: &Name, was: &Self::Node) -> Result<()> {
        self.fs.require_checkpoint(was);
        let keeps_other_names = self.fs.inode(was)?.links > 1;
        if matches!(self.kind, OpKind::Rename | OpKind::Exchange) || was.is_dir() || keeps_other_names {
            self.fs.roll_forward_limits.lock().dirs_with_removed_names.insert(dir.ino);
        }
        self.fs.remove_name(dir, name)
    }

    fn xattr_set(&mut self, node: &Self::Node, key: &XattrKey, value: Option<&[u8]>, mode: SetMode) -> Result<()> {
        if self.kind != OpKind::Create {
            self.fs.require_checkpoint(node);
        }
        self.fs.set_attribute(node, key, value, mode, self.admission)
    }

    fn place(&mut self, file: &Self::Node, at: LbnRange, to: BlockRun, _written: Epoch) -> Result<()> {
        self.fs.place_run(file, at, to, self.admission)
    }

    fn unmap(
        &mut self,
        file: &Self::Node,
        from: Lbn,
        to: Option<Lbn>,
        at_most: u32,
        _orphan: bool,
    ) -> Result<Progress> {
        self.fs.unmap_range(file, from.0, to.map(|to| to.0), at_most)
    }

    fn end(self) -> CommitPoint {
        let seal = self.fs.changed();
        if self.moves_directory {
            self.fs.moved.fetch_max(seal.0, Ordering::AcqRel);
        }
        seal
    }
}

impl F2fs {
    /// Stores a symbolic link's text: in the inode if it fits there with a byte to spare.
    fn store_target(&self, link: &Incore, target: &[u8], admission: &mut Admission) -> Result<()> {
        let area = self.layout(link).inline_range();
        if target.len() < area.len() {
            self.change(&link.node, |bytes| bytes[area][..target.len()].copy_from_slice(target));
            return self.change_inode(link, |inode| {
                inode.size = target.len() as u64;
                inode.inline.insert(Inline::DATA | Inline::DATA_EXIST);
            });
        }
        if target.len() >= BLOCK {
            return Err(Error::Posix(libc::ENAMETOOLONG));
        }
        let mut block = Buf::zeroed(BLOCK);
        block[..target.len()].copy_from_slice(target);
        self.adopt(link, 0, block, admission)?;
        self.change_inode(link, |inode| inode.size = target.len() as u64)
    }

    /// Reads a symbolic link's target.
    pub(super) fn target(&self, link: &Incore) -> Result<Vec<u8>> {
        if self.is_inline(link, Inline::DATA) {
            return Ok(self.inline_bytes(link));
        }
        let size = link.node.view(inode::size);
        let structure = crate::format::Structure::Symlink(link.ino);
        let problem = match self.owned_block(link, 0)? {
            Some(block) if size < BLOCK as u64 => return Ok(block.view(|bytes| bytes[..size as usize].to_vec())),
            Some(_) => format!("it is said to have {size} bytes"),
            None => "it is a hole".to_owned(),
        };
        self.health.watch(Err(super::convert::damaged(structure.damage(None, problem))))
    }
}
