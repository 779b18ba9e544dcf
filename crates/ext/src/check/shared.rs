//! Blocks that are claimed more than once: which claim keeps the block, and copies for all others.
//!
//! One claim is right, the others are stray pointers, or the metadata lies where a descriptor
//! wrongly says. Which one it is cannot always be told, and need not be: each claimant but one gets
//! a copy of the block as it was, so no file loses a byte. The block itself stays with the claim
//! that its contents confirm: fixed metadata, then what looks like the indirect block, directory
//! block or attribute block that it is said to be, then file data. A claim that the contents refute
//! (an indirect block full of illegal pointers) gets nothing.
//!
//! All copies are on the disk before a pointer names them. Nothing at all is changed where there is no room for all.

use std::collections::{BTreeMap, BTreeSet};

use moafs_disk::{Buf, Disk, Page};

use super::checker::Checker;
use super::claims::{Claim, Claims, Loss, Rank, visits_max};
use super::error::CheckError;
use super::issue::Issue;
use super::mapped::{Mapped, Run};
use super::report::Log;
use super::scan::{Blocks, Judge, Pointer, Step, is_indirect_block, walk_map};
use super::tree::{TreeJudge, Visit, has_tree, walk_tree};
use super::volume::Volume;
use crate::format::dir::{self, Form};
use crate::format::extent::{self, Extent};
use crate::format::{BlockNo, Descriptor, Geometry, Inode, InodeNo, Owner, Sealed, bitmap, map, put_u32, u32_at};

/// A copy of the data that the repair needs from a check that changed nothing.
pub(super) struct Tangle {
    claims: Claims,
    geo: Geometry,
    descriptors: Vec<Descriptor>,
    used: Vec<u8>,
}

impl Checker<'_> {
    /// Looks for the claimants of blocks with more than one, and reports all that do not keep their block.
    pub(super) fn find_claims(&mut self) -> Result<(), CheckError> {
        let Some(shared) = self.sharing.map.take() else { return Ok(()) };
        let too_many = self.sharing.visits_left == 0;
        let mut claims = Claims { shared, keepers: BTreeMap::new(), others: Vec::new(), too_many };
        // Pass 1 counted each visit but the first one.
        let mut visits_left = 2 * visits_max(&self.geo);
        let metadata = self.fixed.iter().flat_map(Clone::clone).map(|block| (block as u32, Rank::Metadata));
        let attributes = self.xattrs.keys().map(|block| (*block as u32, Rank::Confirmed));
        for (block, rank) in metadata.chain(attributes) {
            if claims.is_shared(BlockNo(block.into())) {
                claims.keepers.insert(block, Claim { rank, inode: 0, level: 0, lbn: 0 });
            }
        }
        for ino in self.inodes_with_maps() {
            let (_, mut inode) = self.read_inode(ino)?;
            if ino == InodeNo::RESIZE {
                let double = BlockNo(inode.block[13].into());
                let is_right = self.names_the_reserve(double, &self.geo.descriptor_reserve())?;
                let rank = if is_right { Rank::Metadata } else { Rank::Refuted };
                claims.note(double, Claim { rank, inode: ino.0, level: 2, lbn: 0 });
                continue;
            }
            let owner = inode.owner(ino);
            let pages = PageJudge { geo: &self.geo, volume: &self.volume, owner, is_dir: self.is_dir(ino) };
            let mut finder = Finder {
                pages,
                claims: &mut claims,
                own: BTreeSet::new(),
                visits_left: &mut visits_left,
                failed: None,
            };
            if has_tree(&inode, &self.geo) {
                walk_tree(&self.volume, &self.geo, &inode.block_bytes(), &mut finder)?;
            } else {
                walk_map(&self.volume, &self.geo, &mut inode.block, &mut finder)?;
            }
            finder.failed.map_or(Ok(()), Err)?;
        }
        for (block, claim) in &claims.others {
            let holder = claims.holder(*block);
            let (inode, lbn, level) = (InodeNo(claim.inode), claim.lbn, claim.level);
            self.log.note(Issue::MultiplyClaimed { inode, lbn, level, block: *block, holder }, false);
        }
        self.sharing.claims = Some(claims);
        Ok(())
    }

    /// Takes the claims and the rest that [`Tangle::resolve`] needs.
    pub(super) fn take_tangle(&mut self) -> Option<Box<Tangle>> {
        let claims = self.sharing.claims.take()?;
        let (geo, descriptors) = (self.geo.clone(), std::mem::take(&mut self.descriptors));
        Some(Box::new(Tangle { claims, geo, descriptors, used: std::mem::take(&mut self.used) }))
    }
}

/// Judges whether blocks look like the type that a claim gives them.
#[derive(Clone, Copy)]
struct PageJudge<'a, 'v> {
    geo: &'a Geometry,
    volume: &'a Volume<'v>,
    owner: Owner,
    is_dir: bool,
}

impl PageJudge<'_, '_> {
    fn rank(&self, pointer: Pointer, page: &[u8]) -> Rank {
        match pointer.level {
            0 if self.is_dir && is_directory_block(page, self.geo, self.owner.ino, pointer.lbn) => Rank::Confirmed,
            0 => Rank::Data,
            _ if is_indirect_block(page, self.geo) => Rank::Confirmed,
            _ => Rank::Refuted,
        }
    }

    /// Returns the claim of a pointer to a block with these contents.
    fn claim(&self, pointer: Pointer, page: &[u8]) -> Claim {
        let Pointer { level, lbn, .. } = pointer;
        Claim { rank: self.rank(pointer, page), inode: self.owner.ino.0, level, lbn }
    }

    /// Returns the claim of an extent tree to one of its nodes.
    fn claim_of_node(&self, visit: &Visit<'_>) -> Claim {
        let is_own = self.geo.checksums.verify(Sealed::Extents(self.owner), visit.page).is_ok();
        let rank = if is_own && visit.found.problems.is_empty() { Rank::Confirmed } else { Rank::Refuted };
        let (level, lbn) = (visit.child.bounds.depth as u8 + 1, visit.child.bounds.first.into());
        Claim { rank, inode: self.owner.ino.0, level, lbn }
    }
}

/// Returns true if the contents could be file block `lbn` of directory `ino`.
fn is_directory_block(page: &[u8], geo: &Geometry, ino: InodeNo, lbn: u64) -> bool {
    let form = Form::of(geo);
    let whole = dir::records(page, form).all(|record| record.is_ok());
    let dot = dir::records(page, form).map_while(Result::ok).next().filter(|entry| entry.name == b".");
    whole && dot.map(|entry| entry.inode) == (lbn == 0).then_some(ino)
}

/// Notes the claims of an inode's map.
struct Finder<'a, 'v> {
    pages: PageJudge<'a, 'v>,
    claims: &'a mut Claims,
    /// Indirect blocks of this map.
    own: BTreeSet<u64>,
    visits_left: &'a mut u64,
    failed: Option<CheckError>,
}

impl Judge for Finder<'_, '_> {
    fn pointer(&mut self, pointer: Pointer) -> Step {
        let Pointer { block, level, .. } = pointer;
        let legal = self.pages.geo.may_point_to(block) && (level == 0 || self.own.insert(block.0));
        if !legal || self.failed.is_some() {
            return Step::Skip;
        }
        if !self.claims.is_shared(block) {
            return Step::Keep;
        }
        // File data need not be read.
        let page = if level == 0 && !self.pages.is_dir { Ok(None) } else { self.pages.volume.read(block).map(Some) };
        let claim = match page {
            Ok(page) => self.pages.claim(pointer, page.as_deref().unwrap_or_default()),
            Err(error) => {
                self.failed = Some(error);
                return Step::Skip;
            }
        };
        self.claims.note(block, claim);
        if level > 0 && !self.may_visit() {
            return Step::Skip;
        }
        if claim.rank == Rank::Refuted { Step::Skip } else { Step::Keep }
    }

    fn rewritten(&mut self, block: BlockNo, _: Buf) {
        unreachable!("no pointer of block {block} was cleared");
    }
}

impl Finder<'_, '_> {
    /// Counts a visit of a shared indirect block or node; returns false if there were too many.
    fn may_visit(&mut self) -> bool {
        self.claims.too_many |= *self.visits_left == 0;
        *self.visits_left = self.visits_left.saturating_sub(1);
        !self.claims.too_many
    }
}

impl TreeJudge for Finder<'_, '_> {
    fn node(&mut self, visit: &Visit<'_>) -> Result<bool, CheckError> {
        let block = visit.child.block;
        if !self.own.insert(block.0) || !visit.found.is_node {
            return Ok(false);
        }
        if !self.claims.is_shared(block) {
            return Ok(true);
        }
        let claim = self.pages.claim_of_node(visit);
        self.claims.note(block, claim);
        Ok(self.may_visit() && claim.rank != Rank::Refuted)
    }

    fn extent(&mut self, extent: Extent) -> Result<(), CheckError> {
        let (lbn, start) = (u64::from(extent.lbn), extent.start.0);
        for at in (0..u64::from(extent.len))
            .filter(|at| bitmap::test(&self.claims.shared, (start + at) as u32))
            .collect::<Vec<_>>()
        {
            let pointer = Pointer { block: BlockNo(start + at), level: 0, lbn: lbn + at };
            let page = if self.pages.is_dir { Some(self.pages.volume.read(pointer.block)?) } else { None };
            let claim = self.pages.claim(pointer, page.as_deref().unwrap_or_default());
            self.claims.note(pointer.block, claim);
        }
        Ok(())
    }

    // The pass before has reported them.
    fn problem(&mut self, _: Option<BlockNo>, _: String) {}
}

impl Tangle {
    /// Gives a copy of its block to every claimant that does not keep it. Returns false if that
    /// cannot be done: then nothing was changed.
    pub(super) fn resolve(self, disk: &dyn Disk, log: &mut Log) -> Result<bool, CheckError> {
        if self.claims.too_many {
            log.note(Issue::TooManyClaims, false);
            return Ok(false);
        }
        let volume = Volume::new(disk, self.geo.clone());
        let losses = self.claims.losses();
        let mut needed = 0;
        for (ino, loss) in &losses {
            needed += self.blocks_needed(&volume, InodeNo(*ino), *loss)?;
        }
        let Tangle { claims, geo, descriptors, used } = self;
        let free: u64 = bitmap::count_zeros(&used, geo.blocks as u32).into();
        if needed > free {
            log.note(Issue::NoRoomToCopy { needed, free }, false);
            return Ok(false);
        }
        let mut copier = Copier {
            pages: PageJudge {
                geo: &geo,
                volume: &volume,
                owner: Owner { ino: InodeNo::ROOT, generation: 0 },
                is_dir: false,
            },
            claims: &claims,
            used,
            next_free: geo.first_data_block as u32 + 1,
            originals: BTreeMap::new(),
            own: BTreeSet::new(),
            changed: Vec::new(),
            log,
        };
        if claims.others.iter().any(|(_, claim)| claim.inode == InodeNo::RESIZE.0) {
            let table = descriptors[geo.locate_inode(InodeNo::RESIZE).expect("it claims a block").group.0 as usize];
            // Its pass would write to the block. It takes the feature away instead.
            volume.set_slot(table.inode_table, InodeNo::RESIZE, &vec![0; geo.inode_size as usize])?;
        }
        for ino in losses.into_keys().map(InodeNo) {
            let at = geo.locate_inode(ino).expect("it claims a block");
            let table = descriptors[at.group.0 as usize].inode_table;
            let mut slot = volume.slot(table, ino)?;
            let mut inode = Inode::parse(&slot, &geo);
            copier.untangle(ino, &mut inode)?;
            // The copies first: until a pointer names them they are only free blocks.
            volume.finish(None)?;
            copier.changed.drain(..).for_each(|(block, contents)| volume.write(block, contents));
            inode.encode_into(&mut slot, &geo);
            volume.set_slot(table, ino, &slot)?;
        }
        volume.finish(None)?;
        Ok(true)
    }

    /// Returns the number of free blocks that an inode takes at most.
    fn blocks_needed(&self, volume: &Volume<'_>, ino: InodeNo, loss: Loss) -> Result<u64, CheckError> {
        let at = self.geo.locate_inode(ino).expect("it claims a block");
        let slot = volume.slot(self.descriptors[at.group.0 as usize].inode_table, ino)?;
        let inode = Inode::parse(&slot, &self.geo);
        if !has_tree(&inode, &self.geo) {
            return Ok(loss.data + loss.nodes);
        }
        let mut size = TreeSize { claims: &self.claims, met: BTreeSet::new(), extents: 0, blocks: 0, own_nodes: 0 };
        walk_tree(volume, &self.geo, &inode.block_bytes(), &mut size)?;
        // A copy in the middle of an extent makes three of it. The tree is built anew, of its own nodes first.
        let extents = (size.extents + 2 * loss.data).min(size.blocks);
        Ok(loss.data + extent::node_count(extents, self.geo.block_bytes()).saturating_sub(size.own_nodes))
    }
}

/// Measures an extent tree.
struct TreeSize<'a> {
    claims: &'a Claims,
    /// The nodes that were met.
    met: BTreeSet<u64>,
    extents: u64,
    /// The blocks in the extents.
    blocks: u64,
    /// Nodes that no other claims.
    own_nodes: u64,
}

impl TreeJudge for TreeSize<'_> {
    fn node(&mut self, visit: &Visit<'_>) -> Result<bool, CheckError> {
        let block = visit.child.block;
        if !self.met.insert(block.0) || !visit.found.is_node {
            return Ok(false);
        }
        self.own_nodes += u64::from(!self.claims.is_shared(block));
        Ok(true)
    }

    fn extent(&mut self, extent: Extent) -> Result<(), CheckError> {
        self.extents += 1;
        self.blocks += u64::from(extent.len);
        Ok(())
    }

    // The pass before has reported them.
    fn problem(&mut self, _: Option<BlockNo>, _: String) {}
}

/// Copies the shared blocks of one inode after the other.
struct Copier<'a, 'v> {
    pages: PageJudge<'a, 'v>,
    claims: &'a Claims,
    used: Vec<u8>,
    next_free: u32,
    /// Shared indirect blocks that the claimant that keeps them has changed, as they were before.
    originals: BTreeMap<u64, Page>,
    /// Indirect blocks of this map.
    own: BTreeSet<u64>,
    /// Indirect blocks that the inode keeps, with new pointers.
    changed: Vec<(BlockNo, Buf)>,
    log: &'a mut Log,
}

impl Copier<'_, '_> {
    fn untangle(&mut self, ino: InodeNo, inode: &mut Inode) -> Result<(), CheckError> {
        self.pages.owner = inode.owner(ino);
        self.pages.is_dir = inode.is_dir();
        self.own.clear();
        if has_tree(inode, self.pages.geo) {
            return self.untangle_tree(inode);
        }
        let apb = self.pages.geo.apb;
        for (slot, pointer) in inode.block.iter_mut().enumerate() {
            let (level, lbn) = (map::level_of_slot(slot), map::first_lbn_of_slot(slot, apb));
            *pointer = self.copied(Pointer { block: BlockNo((*pointer).into()), level, lbn })?;
        }
        Ok(())
    }

    /// Returns the new value of a pointer: the block itself, a copy, or 0.
    fn copied(&mut self, pointer: Pointer) -> Result<u32, CheckError> {
        let Pointer { block, level, lbn } = pointer;
        let (same, geo) = (block.0 as u32, self.pages.geo);
        // Illegal pointers are left to pass 1.
        if !geo.may_point_to(block) {
            return Ok(same);
        }
        if level > 0 && !self.own.insert(block.0) {
            self.log.note(Issue::MapLoop { inode: self.pages.owner.ino, lbn, level, block }, true);
            return Ok(0);
        }
        let shared = self.claims.is_shared(block);
        if !shared && level == 0 {
            return Ok(same);
        }
        let before = self.original(block)?;
        let claim = if shared { Some(self.pages.claim(pointer, &before)) } else { None };
        let keeps = claim.is_none_or(|claim| self.claims.keeps(block, &claim));
        if let Some(claim) = claim.filter(|_| !keeps) {
            let holder = self.claims.holder(block);
            self.log.note(Issue::MultiplyClaimed { inode: self.pages.owner.ino, lbn, level, block, holder }, true);
            if claim.rank == Rank::Refuted {
                return Ok(0);
            }
        }
        let refuted = claim.is_some_and(|claim| claim.rank == Rank::Refuted);
        let mut after = Buf::copy_of(&before);
        if level > 0 && !refuted {
            for index in 0..geo.apb as usize {
                let child = BlockNo(u32_at(&before, 4 * index).into());
                let lbn = lbn + index as u64 * map::span(level - 1, geo.apb);
                put_u32(&mut after, 4 * index, self.copied(Pointer { block: child, level: level - 1, lbn })?);
            }
        }
        if !keeps {
            let copy = self.take_block()?;
            self.pages.volume.write(copy, after);
            return Ok(copy.0 as u32);
        }
        if *after != *before {
            if shared {
                self.originals.insert(block.0, before);
            }
            self.changed.push((block, after));
        }
        Ok(same)
    }

    /// Builds the tree anew with copies of the blocks that others keep.
    fn untangle_tree(&mut self, inode: &mut Inode) -> Result<(), CheckError> {
        let geo = self.pages.geo;
        let mut collector = Collector { copier: self, mapped: Mapped::default(), next: 0, is_changed: false };
        // Shared nodes may have been changed already: their claimants see them as they were.
        let originals = Originals { volume: collector.copier.pages.volume, pages: collector.copier.originals.clone() };
        walk_tree(&originals, geo, &inode.block_bytes(), &mut collector)?;
        let Collector { mut mapped, is_changed, .. } = collector;
        if !is_changed {
            return Ok(());
        }
        let extents = mapped.extents();
        let mut take = || mapped.nodes.pop().map_or_else(|| self.take_block(), Ok);
        let built = extent::build(&extents, geo.block_bytes(), &mut take)?;
        for (block, bytes) in built.nodes {
            if self.claims.is_shared(block) {
                let before = self.original(block)?;
                self.originals.insert(block.0, before);
            }
            let mut bytes = Buf::copy_of(&bytes);
            let _ = geo.checksums.seal(Sealed::Extents(self.pages.owner), &mut bytes);
            self.changed.push((block, bytes));
        }
        inode.set_block_bytes(&built.root);
        Ok(())
    }

    fn original(&self, block: BlockNo) -> Result<Page, CheckError> {
        match self.originals.get(&block.0) {
            Some(page) => Ok(page.clone()),
            None => self.pages.volume.read(block),
        }
    }

    fn take_block(&mut self) -> Result<BlockNo, CheckError> {
        let blocks = self.pages.geo.blocks as u32;
        let free = bitmap::first_zero(&self.used, self.next_free, blocks).ok_or(CheckError::Full)?;
        bitmap::set(&mut self.used, free);
        self.next_free = free + 1;
        Ok(BlockNo(free.into()))
    }
}

/// Shared blocks as they were before the repair, other blocks as they are.
struct Originals<'a, 'v> {
    volume: &'a Volume<'v>,
    pages: BTreeMap<u64, Page>,
}

impl Blocks for Originals<'_, '_> {
    type Error = CheckError;

    fn read(&self, block: BlockNo) -> Result<Page, CheckError> {
        self.pages.get(&block.0).map_or_else(|| self.volume.read(block), |page| Ok(page.clone()))
    }
}

/// Collects what an inode's extent tree maps after the repair: copies where others keep the blocks.
struct Collector<'c, 'a, 'v> {
    copier: &'c mut Copier<'a, 'v>,
    /// The nodes are those that the inode keeps.
    mapped: Mapped,
    /// The file block behind the last extent.
    next: u64,
    is_changed: bool,
}

impl Collector<'_, '_, '_> {
    /// Notes that a claim does not keep its block.
    fn give_up(&mut self, block: BlockNo, claim: Claim) {
        let Claim { inode, level, lbn, .. } = claim;
        let holder = self.copier.claims.holder(block);
        self.copier.log.note(Issue::MultiplyClaimed { inode: InodeNo(inode), lbn, level, block, holder }, true);
        self.is_changed = true;
    }
}

impl TreeJudge for Collector<'_, '_, '_> {
    fn node(&mut self, visit: &Visit<'_>) -> Result<bool, CheckError> {
        let block = visit.child.block;
        if !self.copier.own.insert(block.0) || !visit.found.is_node {
            return Ok(false);
        }
        let claim = self.copier.pages.claim_of_node(visit);
        if !self.copier.claims.is_shared(block) || self.copier.claims.keeps(block, &claim) {
            self.mapped.nodes.push(block);
            return Ok(true);
        }
        self.give_up(block, claim);
        Ok(claim.rank != Rank::Refuted)
    }

    fn extent(&mut self, extent: Extent) -> Result<(), CheckError> {
        // Pass 1 gives up what overlaps.
        if u64::from(extent.lbn) < self.next {
            return Ok(());
        }
        self.next = extent.end();
        for at in 0..u64::from(extent.len) {
            let (block, lbn) = (BlockNo(extent.start.0 + at), u64::from(extent.lbn) + at);
            let place = if self.copier.claims.is_shared(block) { self.place(block, lbn)? } else { block };
            self.mapped.push(Run { lbn, start: place, len: 1, unwritten: extent.unwritten });
        }
        Ok(())
    }

    // They are left to pass 1.
    fn problem(&mut self, _: Option<BlockNo>, _: String) {}
}

impl Collector<'_, '_, '_> {
    /// Returns the place of a shared block of data: the block itself, or a copy.
    fn place(&mut self, block: BlockNo, lbn: u64) -> Result<BlockNo, CheckError> {
        let page = self.copier.original(block)?;
        let claim = self.copier.pages.claim(Pointer { block, level: 0, lbn }, &page);
        if self.copier.claims.keeps(block, &claim) {
            return Ok(block);
        }
        self.give_up(block, claim);
        let copy = self.copier.take_block()?;
        self.copier.pages.volume.write(copy, Buf::copy_of(&page));
        Ok(copy)
    }
}
