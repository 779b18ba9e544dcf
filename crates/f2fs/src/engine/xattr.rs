//! Extended attributes at work: one stream through the inode's last words and, when those do not suffice, a node.

use std::sync::Arc;

use moafs_vfs::format::Admission;
use moafs_vfs::types::{SetMode, XattrKey};
use moafs_vfs::{Error, Result};

use super::incore::Incore;
use super::nodes::Node;
use super::{F2fs, damaged};
use crate::format::inode::Inline;
use crate::format::node::XATTR_OFFSET;
use crate::format::xattr::{self as codec, Attribute, NODE_BYTES};
use crate::format::{Nid, Structure};

impl F2fs {
    /// Every attribute of an inode.
    pub(super) fn attributes(&self, file: &Incore) -> Result<Vec<Attribute>> {
        let area = self.inline_area(file);
        let mut stream = file.node.view(|bytes| bytes[area].to_vec());
        if let Some(node) = self.attribute_node(file)? {
            node.view(|bytes| stream.extend_from_slice(&bytes[..NODE_BYTES]));
        }
        let decoded = codec::decode(&stream);
        self.health.watch(decoded.map_err(|problem| damaged(Structure::Xattrs(file.ino).damage(None, problem))))
    }

    /// An attribute's value, in the system call's form.
    pub(super) fn attribute(&self, file: &Incore, key: &XattrKey) -> Result<Option<Vec<u8>>> {
        let all = self.attributes(file)?;
        let Some(attribute) = codec::find(&all, key) else { return Ok(None) };
        let value = attribute.call_value().ok_or_else(|| {
            let problem = format!("{} is no access control list", key.full().escape_ascii());
            damaged(Structure::Xattrs(file.ino).damage(None, problem))
        });
        self.health.watch(value).map(Some)
    }

    /// The keys of all attributes that are in a name space of programs.
    pub(super) fn attribute_keys(&self, file: &Incore) -> Result<Vec<XattrKey>> {
        Ok(self.attributes(file)?.iter().filter_map(Attribute::key).collect())
    }

    /// The part of the stream inside the inode. Words that only inline entries reserve do not count.
    fn inline_area(&self, file: &Incore) -> std::ops::Range<usize> {
        let area = self.layout(file).inline_xattr_range();
        if self.is_inline(file, Inline::XATTR) { area } else { area.end..area.end }
    }

    fn attribute_node(&self, file: &Incore) -> Result<Option<Arc<Node>>> {
        let nid = self.inode(file)?.xattr_nid;
        if nid == Nid::NONE {
            return Ok(None);
        }
        let node = self.node(nid, file.ino)?;
        if node.offset != XATTR_OFFSET {
            let problem = format!("it is node {} of its file, and found where attributes belong", node.offset);
            return self.health.watch(Err(damaged(Structure::Node(nid).damage(None, problem))));
        }
        Ok(Some(node))
    }

    /// Sets an attribute to a value in the system call's form, or removes it.
    ///
    /// # Errors
    /// As `setxattr` and `removexattr` have them; `E2BIG` for a value that never fits, `ENOSPC` for one that does not fit
    /// beside the others.
    pub(super) fn set_attribute(
        &self,
        file: &Incore,
        key: &XattrKey,
        value: Option<&[u8]>,
        mode: SetMode,
        admission: &mut Admission,
    ) -> Result<()> {
        if key.suffix.len() > usize::from(u8::MAX) {
            return Err(Error::Posix(libc::ERANGE));
        }
        let mut all = self.attributes(file)?;
        codec::set(&mut all, key, value, mode).map_err(Error::Posix)?;
        let inside = self.inline_area(file).len();
        if let Some(stream) = codec::encode(&all, inside) {
            self.drop_attributes(file)?;
            return self.store_inline(file, &stream);
        }
        let capacity = inside + NODE_BYTES;
        let Some(stream) = codec::encode(&all, capacity) else {
            let alone = all.last().is_none_or(|new| codec::encode(std::slice::from_ref(new), capacity).is_none());
            return Err(Error::Posix(if alone { libc::E2BIG } else { libc::ENOSPC }));
        };
        let (inline, outside) = stream.split_at(inside);
        self.store_outside(file, outside, admission)?;
        self.store_inline(file, inline)
    }

    fn store_inline(&self, file: &Incore, stream: &[u8]) -> Result<()> {
        let area = self.inline_area(file);
        self.change(&file.node, |bytes| bytes[area].copy_from_slice(stream));
        Ok(())
    }

    fn store_outside(&self, file: &Incore, stream: &[u8], admission: &mut Admission) -> Result<()> {
        let node = match self.attribute_node(file)? {
            Some(node) => node,
            None => {
                let node = self.new_node(Some(file.ino), XATTR_OFFSET, file.is_dir(), admission)?;
                self.change_inode(file, |inode| inode.xattr_nid = node.nid)?;
                self.count_blocks(file, 1);
                node
            }
        };
        if node.view(|bytes| bytes[..NODE_BYTES] != *stream) {
            self.change(&node, |bytes| bytes[..NODE_BYTES].copy_from_slice(stream));
        }
        Ok(())
    }

    /// Gives up the attribute node, if there is one.
    pub(super) fn drop_attributes(&self, file: &Incore) -> Result<()> {
        if let Some(node) = self.attribute_node(file)? {
            self.free_node(&node)?;
            self.change_inode(file, |inode| inode.xattr_nid = Nid::NONE)?;
            self.count_blocks(file, -1);
        }
        Ok(())
    }
}
