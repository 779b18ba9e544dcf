//! Operations on extended attributes: one stream through the inode's last words and, when those do
//! not suffice, a node.

use std::sync::Arc;

use moafs_vfs::format::Admission;
use moafs_vfs::types::{SetMode, XattrKey};
use moafs_vfs::{Error, Result};

use super::convert::damaged;
use super::incore::Incore;
use super::node_cache::Node;
use super::volume::F2fs;
use crate::format::inode::Inline;
use crate::format::node::XATTR_OFFSET;
use crate::format::xattr::{self as codec, Attribute, NODE_BYTES};
use crate::format::{Nid, Structure};

impl F2fs {
    /// Reads all attributes of an inode.
    pub(super) fn attributes(&self, file: &Incore) -> Result<Vec<Attribute>> {
        let area = self.inline_area(file);
        let mut stream = file.node.view(|bytes| bytes[area].to_vec());
        if let Some(node) = self.attribute_node(file)? {
            node.view(|bytes| stream.extend_from_slice(&bytes[..NODE_BYTES]));
        }
        let decoded = codec::decode(&stream);
        self.health.watch(decoded.map_err(|problem| damaged(Structure::Xattrs(file.ino).damage(None, problem))))
    }

    /// Returns an attribute's value, in the system call's form.
    pub(super) fn attribute(&self, file: &Incore, key: &XattrKey) -> Result<Option<Vec<u8>>> {
        let all = self.attributes(file)?;
        let Some(attribute) = codec::find(&all, key) else { return Ok(None) };
        let value = attribute.call_value().ok_or_else(|| {
            let problem = format!("{} is no access control list", key.full().escape_ascii());
            damaged(Structure::Xattrs(file.ino).damage(None, problem))
        });
        self.health.watch(value).map(Some)
    }

    /// Returns the keys of all attributes that are in a name space of programs.
    pub(super) fn attribute_keys(&self, file: &Incore) -> Result<Vec<XattrKey>> {
        Ok(self.attributes(file)?.iter().filter_map(Attribute::key).collect())
    }

    /// Returns the part of the stream inside the inode. Words that only inline entries reserve do
    /// not count.
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
    /// As `setxattr` and `removexattr` have them; `E2BIG` for a value that never fits, `ENOSPC`
    /// for one that does not fit beside the others.
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

    /// Frees the attribute node, if there is one.
    pub(super) fn drop_attributes(&self, file: &Incore) -> Result<()> {
        if let Some(node) = self.attribute_node(file)? {
            self.free_node(&node)?;
            self.change_inode(file, |inode| inode.xattr_nid = Nid::NONE)?;
            self.count_blocks(file, -1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use moafs_disk::mem::MemDisk;
    use moafs_vfs::Vfs;
    use moafs_vfs::types::{FileKind, Ino};
    use proptest::prelude::*;

    use super::*;
    use crate::format::superblock::Features;
    use crate::judge::{assert_clean, features, mount, name, new, root, volume};

    struct Mounted {
        mem: Arc<MemDisk>,
        vfs: Vfs<F2fs>,
        ino: Ino,
    }

    impl Mounted {
        fn new(features: Features, kind: FileKind) -> Mounted {
            let mem = volume(64, features);
            let vfs = mount(&mem);
            let ino = vfs.create(&root(), Ino(3), name(b"file"), &new(kind)).unwrap().ino;
            Mounted { mem, vfs, ino }
        }

        fn set(&self, key: &str, value: &[u8], mode: SetMode) -> std::result::Result<(), i32> {
            let set = self.vfs.set_xattr(&root(), self.ino, key.as_bytes(), value, mode);
            set.map_err(|error| error.errno())
        }

        fn get(&self, key: &str) -> std::result::Result<Vec<u8>, i32> {
            self.vfs.get_xattr(&root(), self.ino, key.as_bytes()).map_err(|error| error.errno())
        }

        fn remove(&self, key: &str) -> std::result::Result<(), i32> {
            self.vfs.remove_xattr(&root(), self.ino, key.as_bytes()).map_err(|error| error.errno())
        }

        fn all(&self) -> BTreeMap<String, Vec<u8>> {
            let keys = self.vfs.list_xattr(&root(), self.ino).unwrap();
            let keys = keys.iter().map(|key| String::from_utf8(key.full()).unwrap());
            keys.map(|key| (key.clone(), self.get(&key).unwrap())).collect()
        }

        fn incore(&self) -> Arc<Incore> {
            self.vfs.format().incore(Nid(self.ino.0 as u32)).unwrap()
        }

        fn node(&self) -> Option<Arc<Node>> {
            self.vfs.format().attribute_node(&self.incore()).unwrap()
        }

        fn blocks(&self) -> u64 {
            self.vfs.stat(self.ino).unwrap().sectors / 8
        }

        fn remount(&mut self, what: &str) {
            self.vfs.clone().close().unwrap();
            assert_clean(&self.mem, what);
            self.vfs = mount(&self.mem);
        }
    }

    #[test]
    fn attributes_cross_into_a_node_and_come_back() {
        for (features, kind) in features().into_iter().zip([FileKind::Regular, FileKind::Directory]) {
            let mut m = Mounted::new(features, kind);
            m.set("user.small", b"inside", SetMode::Create).unwrap();
            assert!(m.node().is_none());
            m.set("user.large", &[7; 500], SetMode::Any).unwrap();
            m.set("trusted.third", &[8; 3000], SetMode::Any).unwrap();
            assert!(m.node().is_some());
            assert_eq!(m.blocks(), 1);
            m.remount("attributes in a node");
            let all = m.all();
            assert_eq!(all.keys().collect::<Vec<_>>(), ["trusted.third", "user.large", "user.small"]);
            assert_eq!((&all["user.small"][..], &all["user.large"][..]), (&b"inside"[..], &[7; 500][..]));
            m.remove("user.large").unwrap();
            m.set("trusted.third", b"short", SetMode::Replace).unwrap();
            assert!(m.node().is_none());
            assert_eq!(m.blocks(), 0);
            m.remount("attributes inside again");
            assert_eq!(m.all().len(), 2);
        }
    }

    #[test]
    fn access_control_lists_are_kept() {
        let mut m = Mounted::new(features()[0], FileKind::Directory);
        let entry =
            |tag: u16, perm: u16, id: u32| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
        let nobody = u32::MAX;
        let acl = [
            2u32.to_le_bytes().to_vec(),
            entry(0x01, 7, nobody),
            entry(0x02, 6, 1000),
            entry(0x04, 5, nobody),
            entry(0x10, 7, nobody),
            entry(0x20, 5, nobody),
        ]
        .concat();
        for key in ["system.posix_acl_access", "system.posix_acl_default"] {
            m.set(key, &acl, SetMode::Any).unwrap();
        }
        m.remount("access control lists");
        assert_eq!(m.get("system.posix_acl_access").unwrap(), acl);
        assert_eq!(m.get("system.posix_acl_default").unwrap(), acl);
        assert_eq!(m.set("system.posix_acl_access", &acl[..9], SetMode::Any), Err(libc::EINVAL));
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let m = Mounted::new(features()[0], FileKind::Regular);
        // The stream has also a header, the entry's head and its name, and a zero word.
        let longest = 4 * 50 + NODE_BYTES - 24 - 4 - "a".len() - 4;
        assert_eq!(m.set("user.a", &vec![1; longest + 1], SetMode::Any), Err(libc::E2BIG));
        assert_eq!(m.set("user.a", &vec![1; longest], SetMode::Any), Ok(()));
        assert_eq!(m.set("user.b", b"value", SetMode::Any), Err(libc::ENOSPC));
        assert_eq!(m.set("user.a", b"value", SetMode::Create), Err(libc::EEXIST));
        assert_eq!(m.set("user.b", b"value", SetMode::Replace), Err(libc::ENODATA));
        assert_eq!(m.remove("user.b"), Err(libc::ENODATA));
        assert_eq!(m.all(), BTreeMap::from([("user.a".to_owned(), vec![1; longest])]));
    }

    #[test]
    fn an_inode_without_room_for_attributes_has_them_all_in_the_node() {
        for kind in [FileKind::Regular, FileKind::Directory] {
            let mut m = Mounted::new(Features::empty(), kind);
            let (fs, file) = (m.vfs.format(), m.incore());
            fs.change_inode(&file, |inode| inode.inline.remove(Inline::XATTR)).unwrap();
            m.set("user.small", b"value", SetMode::Any).unwrap();
            assert!(
                m.node().is_some_and(|node| node.view(|bytes| codec::decode(&bytes[..NODE_BYTES]).unwrap().len() == 1))
            );
            drop(file);
            m.remount("attributes in a node only");
            assert_eq!(m.get("user.small").unwrap(), b"value");
            m.remove("user.small").unwrap();
            assert!(m.node().is_none());
            m.remount("no attributes");
        }
    }

    #[test]
    fn removing_a_file_frees_its_attribute_node() {
        let mut m = Mounted::new(features()[0], FileKind::Regular);
        let before = m.vfs.format().space.usage();
        m.set("user.large", &[7; 500], SetMode::Any).unwrap();
        m.vfs.forget(m.ino, 1);
        m.vfs.unlink(&root(), Ino(3), name(b"file")).unwrap();
        m.remount("no file");
        let after = m.vfs.format().space.usage();
        assert_eq!((after.nodes, after.blocks), (before.nodes - 1, before.blocks - 1));
    }

    #[test]
    fn damage_is_reported() {
        let m = Mounted::new(features()[0], FileKind::Regular);
        m.set("user.large", &[7; 500], SetMode::Any).unwrap();
        let file = m.incore();
        m.vfs.format().change_inode(&file, |inode| inode.xattr_nid = file.ino).unwrap();
        let text = m.vfs.format().attributes(&file).unwrap_err().to_string();
        assert!(text.contains("found where attributes belong"), "{text}");
        m.vfs.format().change_inode(&file, |inode| inode.xattr_nid = Nid::NONE).unwrap();
        let text = m.vfs.format().attributes(&file).unwrap_err().to_string();
        assert!(text.contains(&format!("the attributes of inode {}", m.ino.0)), "{text}");
        assert!(m.vfs.failed().is_some());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
        #[test]
        fn attributes_behave_like_a_map(
            ops in prop::collection::vec((0usize..6, prop::option::weighted(0.7, 0usize..1800), 0usize..12), 1..60),
            which in 0usize..2, directory: bool,
        ) {
            let kind = if directory { FileKind::Directory } else { FileKind::Regular };
            let mut m = Mounted::new(features()[which], kind);
            let mut model = BTreeMap::new();
            for (i, (key, value, remount)) in ops.into_iter().enumerate() {
                let key = format!("user.{}", "k".repeat(1 + key * 7));
                match value.map(|len| vec![i as u8; len]) {
                    Some(value) => match m.set(&key, &value, SetMode::Any) {
                        Ok(()) => drop(model.insert(key, value)),
                        Err(errno) => prop_assert_eq!(errno, libc::ENOSPC),
                    },
                    None => prop_assert_eq!(m.remove(&key).is_ok(), model.remove(&key).is_some()),
                }
                if remount == 0 {
                    m.remount("in between");
                }
                prop_assert_eq!(&m.all(), &model);
            }
            m.remount("at the end");
            prop_assert_eq!(&m.all(), &model);
        }
    }
}
