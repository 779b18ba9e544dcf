//! Ending exchanges of names, and replacements of directories, that a crash interrupted.
//!
//! The temporary name of the inode that lost its name first says which names change places ([`Exchange`]). It is on the
//! disk only while both inodes have been at their old names, so what these names lead to now tells how far the op came:
//!
//! | the name that was taken | the name that the taker leaves | |
//! |---|---|---|
//! | the waiting inode | the taker | not begun |
//! | the taker | the taker | half done: the waiting inode gets its name back |
//! | anything else | the taker | half done, and a later op has changed the first name: the exchange is completed |
//! | | anything else | done; a later op may have changed either name |
//!
//! A name counts only in a directory that the root leads to: a later op may have removed the directory. The later ops
//! cannot have given either inode another name, since they wait for the end of the temporary one to do so.
//!
//! No caller sees or changes a name before all of them have ended, and whatever changes then reaches the disk after the
//! temporary names are gone from it. So a crash meanwhile leaves rows of the same table.

use std::sync::Arc;

use moafs_runtime::leaf::atomic::Ordering;
use moafs_vfs::Result;
use moafs_vfs::types::{Cookie, FileKind, Name};

use super::state::Pass;
use crate::engine::incore::Incore;
use crate::engine::names::is_dot;
use crate::engine::volume::Ext;
use crate::format::InodeNo;
use crate::format::exchange::{Exchange, NameAt};
use crate::meta::Level;

/// A temporary name, and the exchange that it tells of.
type Interrupted = (Vec<u8>, Exchange);

/// A name that takes part in an exchange.
struct Place {
    dir: Arc<Incore>,
    name: Vec<u8>,
    leads_to: InodeNo,
}

impl Ext {
    /// Checks once, before any change, whether the crash interrupted an exchange.
    pub(super) fn look_for_exchanges(&self, pass: &mut Pass) -> Result<()> {
        if pass.exchanges || self.recovery.may_change.load(Ordering::Acquire) {
            return Ok(());
        }
        let home = self.exchange_home()?;
        pass.exchanges = !self.interrupted_exchanges(&home)?.is_empty();
        if !pass.exchanges {
            self.recovery.may_change.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn interrupted_exchanges(&self, home: &Incore) -> Result<Vec<Interrupted>> {
        let mut found = Vec::new();
        self.list_names(home, Cookie::START, &mut |name, dentry, _| {
            let exchange = Exchange::parse(name.as_bytes(), self.marks);
            let own = exchange.filter(|exchange| u64::from(exchange.waiting.0) == dentry.ino.0);
            found.extend(own.map(|exchange| (name.as_bytes().to_vec(), exchange)));
            true
        })?;
        Ok(found)
    }

    /// Ends every interrupted exchange. Returns true if there was one: names have to be read again then.
    pub(super) fn end_exchanges(&self) -> Result<bool> {
        let home = self.exchange_home()?;
        let mut ended = false;
        for (temporary, exchange) in self.interrupted_exchanges(&home)? {
            let (Some(needs), Some(temporary)) = (self.end_exchange(&exchange)?, Name::new(&temporary)) else {
                continue;
            };
            self.drop_name(&home, temporary, needs)?;
            ended = true;
        }
        if ended {
            self.meta.order_after_all();
        }
        Ok(ended)
    }

    /// Gives the waiting inode one of the two names. Returns the level at which it has it; `None` if the temporary name
    /// has to stay.
    fn end_exchange(&self, exchange: &Exchange) -> Result<Option<Level>> {
        let &Exchange { waiting, taker, .. } = exchange;
        let Some(node) = self.in_use(waiting)? else { return Ok(None) };
        let taken = self.find_place(exchange.taken, exchange)?;
        let left = self.find_place(exchange.left, exchange)?;
        let leads_to = |place: &Option<Place>| place.as_ref().map(|place| place.leads_to);
        let gets = match (leads_to(&taken), leads_to(&left)) {
            (Some(at), _) if at == waiting => None,
            (_, at) if at != Some(taker) => None,
            (Some(_), _) => taken.as_ref(),
            // Of a directory no later op changes the name: the volume is not as this driver leaves it.
            (None, _) if self.recovery.known.lock().is_directory(taker.0) => return Ok(None),
            (None, _) => left.as_ref(),
        };
        let mut level = Level::NONE;
        for place in [&taken, &left].into_iter().flatten() {
            let is_it = gets.is_some_and(|gets| std::ptr::eq(gets, place));
            let to = if is_it { Some(Arc::clone(&node)) } else { self.in_use(place.leads_to)? };
            let Some(to) = to else { return Ok(None) };
            level = level.max(self.point_place(place, &to)?);
        }
        Ok(Some(level))
    }

    /// Makes a name lead to an inode, with the type of this one: the crash may have left that of the other.
    fn point_place(&self, place: &Place, to: &Incore) -> Result<Level> {
        let Some(name) = Name::new(&place.name) else { return Ok(Level::NONE) };
        let found = self.find_name(&place.dir, name)?;
        if found.is_some_and(|found| found.ino == to.ino && found.kind.is_none_or(|kind| kind == to.kind)) {
            return Ok(Level::NONE);
        }
        self.visit_in_turn(&place.dir)?;
        let level = self.point_name(&place.dir, name, to.ino, to.kind, Level::NONE, true)?.unwrap_or_default();
        self.names_level.fetch_max(level.0, Ordering::Relaxed);
        self.entries_level.fetch_max(level.0, Ordering::Relaxed);
        Ok(level)
    }

    /// Finds a name of an exchange that leads to one of its inodes, in a directory that the root leads to. All such
    /// directories have been read.
    fn find_place(&self, at: NameAt, exchange: &Exchange) -> Result<Option<Place>> {
        if !self.recovery.known.lock().is_read(at.dir.0) {
            return Ok(None);
        }
        let Some(dir) = self.in_use(at.dir)?.filter(|dir| dir.kind == FileKind::Directory) else { return Ok(None) };
        let (mut found, marks) = (None, self.marks);
        self.list_names(&dir, Cookie::START, &mut |name, dentry, _| {
            let bytes = name.as_bytes();
            let leads_to = [exchange.waiting, exchange.taker].into_iter().find(|ino| u64::from(ino.0) == dentry.ino.0);
            if let Some(leads_to) = leads_to.filter(|_| !is_dot(bytes) && marks.hash(bytes) == at.hash) {
                found = Some(Place { dir: Arc::clone(&dir), name: bytes.to_vec(), leads_to });
            }
            found.is_none()
        })?;
        Ok(found)
    }
}
