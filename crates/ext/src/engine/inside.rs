//! Contents inside an inode (inline_data), and values of attributes in inodes of their own (ea_inode).

use moafs_disk::Kind;
use moafs_vfs::types::{FileKind, Lbn, Mapping};
use moafs_vfs::{Error, Result};

use super::incore::{Incore, Life};
use super::volume::Ext;
use crate::format::inode::InodeFlags;
use crate::format::superblock::Incompat;
use crate::format::{Inode, InodeNo, Place, Structure, inline};
use crate::health::damaged;
use crate::meta::Level;

/// The longest value of an attribute that a system call takes, in bytes.
const VALUE_BYTES_MAX: u32 = 65536;

impl Ext {
    /// Returns the contents of a file that has them inside its inode; `None` of other files.
    pub(super) fn inline_contents(&self, node: &Incore) -> Result<Option<Vec<u8>>> {
        let inode = node.inode();
        if !inode.flags.contains(InodeFlags::INLINE_DATA) {
            return Ok(None);
        }
        let table = self.table_block(&node.at)?;
        let slot = self.slot_bytes(&table, &node.at);
        let contents = inline::contents(&inode, node.ino, &slot, node.at.block);
        self.health.watch(contents.map(Some).map_err(damaged))
    }

    /// Refuses to read or list what is encrypted: there are no keys.
    pub(super) fn not_encrypted(&self, node: &Incore) -> Result<()> {
        if node.state.lock().inode.flags.contains(InodeFlags::ENCRYPT) {
            return Err(Error::Posix(libc::ENOKEY));
        }
        Ok(())
    }

    /// Returns an inode that holds the value of an attribute; `None` of other inodes. Such an inode has no name, and no
    /// caller shares it.
    pub(super) fn value_node(&self, ino: InodeNo) -> Result<Option<Incore>> {
        let Some(at) = self.slot_at(ino).filter(|_| ino.0 >= self.geo.first_ino) else { return Ok(None) };
        let table = self.table_block(&at)?;
        let slot = self.slot_bytes(&table, &at);
        let is_value = Inode::parse(&slot, &self.geo).flags.contains(InodeFlags::EA_INODE);
        if !is_value || !self.geo.incompat.contains(Incompat::EA_INODE) {
            return Ok(None);
        }
        let inode = Inode::decode_value(&slot, ino, &self.geo, at.block).map_err(damaged)?;
        let life = Life::Named { born: Level::NONE };
        Ok(Some(Incore::new(&self.registry, ino, FileKind::Regular, at, inode, life)))
    }

    /// Reads the value of an attribute from the inode that holds it.
    pub(super) fn value_of_inode(&self, ino: InodeNo, bytes: u32) -> Result<Vec<u8>> {
        let place = Place::of(Structure::XattrValue(ino));
        let wrong = |problem: String| damaged(place.damage(problem));
        let Some(node) = self.value_node(ino)? else {
            return Err(wrong("this is no inode of a value".to_owned()));
        };
        let inode = node.inode();
        if inode.size != u64::from(bytes) || bytes > VALUE_BYTES_MAX {
            return Err(wrong(format!("its size is {}, but the attribute has {bytes} bytes", inode.size)));
        }
        // The seconds of the access time are the checksum of the value.
        let stored = inode.atime.secs as u32;
        let value = self.read_whole(&node, bytes as usize, place)?;
        match self.geo.checksums.of_value(&value) {
            Some(sum) if sum != stored => Err(wrong(format!("its checksum is {stored:#010x}, should be {sum:#010x}"))),
            _ => Ok(value),
        }
    }

    fn read_whole(&self, node: &Incore, bytes: usize, place: Place) -> Result<Vec<u8>> {
        let block_bytes = self.geo.block_bytes();
        let mut value = Vec::with_capacity(bytes);
        while value.len() < bytes {
            let lbn = (value.len() / block_bytes) as u64;
            let Mapping::Run(run) = self.map_run(node, Lbn(lbn), 1)? else {
                return Err(damaged(place.damage(format!("its block {lbn} is a hole"))));
            };
            let block = self.meta.get(run.start.0, Kind::Xattr)?;
            let part = block_bytes.min(bytes - value.len());
            block.view(|contents| value.extend_from_slice(&contents[..part]));
        }
        Ok(value)
    }
}
