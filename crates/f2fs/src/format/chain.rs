//! Nodes that an fsync writes for recovery to follow (section 13): whether one can be replayed.

use moafs_vfs::types::FileKind;

use super::inode::{self, Inline, Inode};
use super::nat::NatEntry;
use super::node::{self, ADDRS_PER_NODE, Footer};
use super::superblock::{Features, Geometry};
use super::{BlkAddr, Nid};

/// The facts about a volume that a chain is judged by.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The places of the volume's areas.
    pub geo: &'a Geometry,
    /// The volume's features.
    pub features: Features,
    /// The volume's id, which checksums of inodes cover.
    pub uuid: &'a [u8; 16],
}

/// Returns the reason why a node of a chain cannot be replayed. `known` is the checkpoint's entry of the node's id.
/// A block whose write was torn looks like that, if anything shows it: only inodes have checksums, and only on volumes
/// with that feature.
pub fn problem(page: &[u8], known: NatEntry, facts: Facts<'_>) -> Option<String> {
    let Facts { geo, features, uuid } = facts;
    let Footer { nid, ino, offset, .. } = Footer::decode(page);
    let is_nid = |nid: Nid| (Nid::ROOT.0..geo.nid_max()).contains(&nid.0);
    if !is_nid(nid) || !is_nid(ino) || (nid == ino) != (offset == 0) {
        return Some(format!("node {nid} cannot be node {offset} of inode {ino}"));
    }
    if known.addr != BlkAddr::NULL && known.ino != ino {
        return Some(format!("its footer says that node {nid} belongs to inode {ino}, not to {}", known.ino));
    }
    let addresses: Vec<BlkAddr> = match offset {
        0 => match inode::verify_checksum(page, uuid, features).and_then(|()| decoded(page, ino, features)) {
            Ok(inode) if inode.kind == FileKind::Regular && !inode.inline.contains(Inline::DATA) => {
                let layout = inode.layout(features.contains(Features::FLEXIBLE_INLINE_XATTR));
                (0..layout.addresses() as usize).map(|slot| layout.addr(page, slot)).collect()
            }
            Ok(_) => Vec::new(),
            Err(problem) => return Some(problem),
        },
        _ if node::is_direct(offset) => (0..ADDRS_PER_NODE).map(|slot| node::addr(page, slot)).collect(),
        _ => Vec::new(),
    };
    let is_address = |addr: &BlkAddr| [BlkAddr::NULL, BlkAddr::NEW].contains(addr) || geo.is_main(*addr);
    let wrong = addresses.into_iter().find(|addr| !is_address(addr))?;
    Some(format!("it has address {wrong}, outside the main area"))
}

fn decoded(page: &[u8], ino: Nid, features: Features) -> Result<Inode, String> {
    Inode::decode(page, ino, features).map_err(|damage| damage.problem)
}
