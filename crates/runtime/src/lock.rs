//! Mutex and reader-writer lock that may be held across a wait.
//!
//! Both are one lock word and an [`Event`]. Invariants:
//!
//! 1. Uncontended locking and unlocking is one compare-and-swap each and never enters the runtime.
//! 2. A task that cannot enter registers in the lock word *after* it has taken a ticket; a holder
//!    that leaves and sees a registered task signals. So no wake-up is lost.
//! 3. Newcomers do not overtake: a writer that finds other writers registered waits for one
//!    release before it tries; readers do not enter while a writer is registered. So writers do
//!    not starve.
//! 4. A writer that leaves admits as many readers as are registered at that moment, before the
//!    next writer. So readers do not starve either.
//!
//! A panic while a guard is held releases the lock; there is no poisoning. In a virtual runtime
//! every acquisition is a point where another ready task may run.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Event, Rt};

/// Attempts of a live thread before it parks: a hand-over between cores takes longer than most
/// critical sections.
const SPINS: u32 = 64;

/// Bits of one counter in the lock word: more tasks than a machine has threads.
const FIELD_BITS: u32 = 15;
const FIELD_MAX: u64 = (1 << FIELD_BITS) - 1;
/// The bit that says that a writer is inside.
const WRITER: u64 = 1;
/// The unit of the count of readers inside.
const READER: u64 = 1 << 1;
/// The unit of the count of readers registered as waiting.
const READER_WAITS: u64 = READER << FIELD_BITS;
/// The unit of the count of writers registered as waiting.
const WRITER_WAITS: u64 = READER_WAITS << FIELD_BITS;
/// The unit of the count of registered readers that may enter before the next writer.
const ADMITTED: u64 = WRITER_WAITS << FIELD_BITS;
const _: () = assert!(4 * FIELD_BITS < u64::BITS);

/// Returns the counter of the lock word whose unit is given.
fn count(word: u64, unit: u64) -> u64 {
    (word / unit) & FIELD_MAX
}

struct Raw {
    rt: Rt,
    /// The runtime's answer to [`crate::Runtime::is_virtual`], cached.
    is_virtual: bool,
    word: AtomicU64,
    released: Event,
}

impl Raw {
    fn new(rt: Rt) -> Raw {
        Raw { is_virtual: rt.is_virtual(), rt, word: AtomicU64::new(0), released: Event::new() }
    }

    fn try_step(&self, from: u64, to: u64) -> bool {
        self.word.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Lets other ready tasks of a virtual runtime run; spins for a moment on a live one.
    fn approach(&self, mut attempt: impl FnMut() -> bool) -> bool {
        if self.is_virtual {
            self.rt.compute(0);
            return attempt();
        }
        for _ in 0..SPINS {
            if attempt() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    fn try_write(&self) -> bool {
        self.try_step(0, WRITER)
    }

    fn write(&self) {
        if !self.is_virtual && self.try_write() {
            return;
        }
        if self.approach(|| self.try_write()) {
            return;
        }
        let mut ticket = self.released.ticket();
        let before = self.word.fetch_add(WRITER_WAITS, Ordering::SeqCst);
        let mut overtakes = count(before, WRITER_WAITS) > 0;
        while overtakes || !self.enter_registered_writer() {
            self.rt.wait(&self.released, ticket, None);
            overtakes = false;
            ticket = self.released.ticket();
        }
    }

    /// Lets a registered writer in and removes its registration; false if a holder or an admitted reader is in its
    /// way.
    fn enter_registered_writer(&self) -> bool {
        let mut word = self.word.load(Ordering::SeqCst);
        while word & WRITER == 0 && count(word, READER) == 0 && count(word, ADMITTED) == 0 {
            if self.try_step(word, word - WRITER_WAITS + WRITER) {
                return true;
            }
            word = self.word.load(Ordering::SeqCst);
        }
        false
    }

    fn unlock_write(&self) {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            debug_assert!(word & WRITER != 0 && count(word, READER) == 0);
            let admitted = count(word, READER_WAITS) * ADMITTED;
            if self.try_step(word, word - WRITER + admitted) {
                break;
            }
            word = self.word.load(Ordering::Relaxed);
        }
        if word != WRITER {
            self.rt.signal(&self.released);
        }
        crate::leaf::point();
    }

    fn try_read(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & WRITER == 0 && count(word, WRITER_WAITS) == 0 {
            if self.try_step(word, word + READER) {
                return true;
            }
            word = self.word.load(Ordering::Relaxed);
        }
        false
    }

    fn read(&self) {
        if !self.is_virtual && self.try_read() {
            return;
        }
        if self.approach(|| self.try_read()) {
            return;
        }
        let mut ticket = self.released.ticket();
        self.word.fetch_add(READER_WAITS, Ordering::SeqCst);
        while !self.enter_registered_reader() {
            self.rt.wait(&self.released, ticket, None);
            ticket = self.released.ticket();
        }
    }

    fn enter_registered_reader(&self) -> bool {
        let mut word = self.word.load(Ordering::SeqCst);
        while word & WRITER == 0 {
            let admitted = count(word, ADMITTED) > 0;
            if !admitted && count(word, WRITER_WAITS) > 0 {
                return false;
            }
            let quota = if admitted { ADMITTED } else { 0 };
            if self.try_step(word, word - READER_WAITS - quota + READER) {
                return true;
            }
            word = self.word.load(Ordering::SeqCst);
        }
        false
    }

    fn unlock_read(&self) {
        let before = self.word.fetch_sub(READER, Ordering::SeqCst);
        debug_assert!(count(before, READER) > 0);
        if count(before, READER) == 1 && before != READER {
            self.rt.signal(&self.released);
        }
        crate::leaf::point();
    }
}

/// A mutual exclusion lock that may be held across a wait.
pub struct Mutex<T: ?Sized> {
    raw: Raw,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands the value to one thread at a time.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

/// Access to the value that a [`Mutex`] protects; dropping it unlocks.
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
}

// SAFETY: a guard gives `&T` to every thread that shares it; unlocking from any thread is allowed.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T> Mutex<T> {
    /// Returns an unlocked mutex whose waiters wait in `rt`.
    pub fn new(rt: Rt, value: T) -> Self {
        Mutex { raw: Raw::new(rt), value: UnsafeCell::new(value) }
    }

    /// Returns the value; consuming the lock shows that no task holds it.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until the lock is free and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.raw.write();
        MutexGuard { lock: self }
    }

    /// Takes the lock if it is free and no task waits for it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.raw.try_write().then(|| MutexGuard { lock: self })
    }

    /// Returns the value without locking: the exclusive borrow rules out other users.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.raw.unlock_write();
    }
}

/// A reader-writer lock that may be held across a wait. Writers go before readers that come later.
pub struct RwLock<T: ?Sized> {
    raw: Raw,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands `&T` to many threads or `&mut T` to one.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}

/// Shared access to the value that a [`RwLock`] protects.
pub struct ReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
}

/// Exclusive access to the value that a [`RwLock`] protects.
pub struct WriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
}

// SAFETY: as for `MutexGuard`.
unsafe impl<T: ?Sized + Sync> Sync for WriteGuard<'_, T> {}

impl<T> RwLock<T> {
    /// Returns an unlocked lock whose waiters wait in `rt`.
    pub fn new(rt: Rt, value: T) -> Self {
        RwLock { raw: Raw::new(rt), value: UnsafeCell::new(value) }
    }

    /// Returns the value; consuming the lock shows that no task holds it.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for shared access. Not to be taken twice by one task: a writer between the two
    /// would wait for the first and be waited for by the second.
    pub fn read(&self) -> ReadGuard<'_, T> {
        self.raw.read();
        ReadGuard { lock: self }
    }

    /// Takes shared access if no writer is inside or waits.
    pub fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        self.raw.try_read().then(|| ReadGuard { lock: self })
    }

    /// Waits for exclusive access.
    pub fn write(&self) -> WriteGuard<'_, T> {
        self.raw.write();
        WriteGuard { lock: self }
    }

    /// Takes exclusive access if no task is inside or waits.
    pub fn try_write(&self) -> Option<WriteGuard<'_, T>> {
        self.raw.try_write().then(|| WriteGuard { lock: self })
    }

    /// Returns the value without locking: the exclusive borrow rules out other users.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T: ?Sized> Deref for ReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock for reading.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for ReadGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.raw.unlock_read();
    }
}

impl<T: ?Sized> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock for writing.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock for writing.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.raw.unlock_write();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Live;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn try_lock_fails_while_held() {
        let lock = Mutex::new(Live::new(), 1);
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(guard);
        *lock.try_lock().unwrap() += 1;
        assert_eq!(lock.into_inner(), 2);
    }

    #[test]
    fn readers_share_and_exclude_writers() {
        let lock = RwLock::new(Live::new(), ());
        let (one, two) = (lock.read(), lock.read());
        assert!(lock.try_write().is_none());
        drop((one, two));
        let writer = lock.write();
        assert!(lock.try_read().is_none());
        drop(writer);
        assert!(lock.try_read().is_some());
    }

    #[test]
    fn mutex_counts_exactly_under_contention() {
        let rt = Live::new();
        let lock = Arc::new(Mutex::new(Arc::clone(&rt), 0_u64));
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let lock = Arc::clone(&lock);
                rt.spawn("adder", Box::new(move || (0..5_000).for_each(|_| *lock.lock() += 1)))
            })
            .collect();
        tasks.iter().for_each(|t| t.join(&*rt));
        assert_eq!(*lock.lock(), 20_000);
    }

    #[test]
    fn readers_never_see_half_a_write() {
        let rt = Live::new();
        let lock = Arc::new(RwLock::new(Arc::clone(&rt), (0_u64, 0_u64)));
        let tasks: Vec<_> = (0..4)
            .map(|i| {
                let lock = Arc::clone(&lock);
                let body = move || {
                    for _ in 0..5_000 {
                        if i % 2 == 0 {
                            let mut pair = lock.write();
                            pair.0 += 1;
                            pair.1 += 1;
                        } else {
                            let pair = lock.read();
                            assert_eq!(pair.0, pair.1);
                        }
                    }
                };
                rt.spawn("user", Box::new(body))
            })
            .collect();
        tasks.iter().for_each(|t| t.join(&*rt));
        assert!(tasks.iter().all(|t| !t.has_panicked()));
        assert_eq!(*lock.read(), (10_000, 10_000));
    }

    #[test]
    fn a_thread_that_retakes_its_lock_at_once_lets_others_in() {
        let rt = Live::new();
        let lock = Arc::new(Mutex::new(Arc::clone(&rt), ()));
        let stop = Arc::new(AtomicBool::new(false));
        let (greedy, stopped) = (Arc::clone(&lock), Arc::clone(&stop));
        let body = move || {
            while !stopped.load(Ordering::Relaxed) {
                let _guard = greedy.lock();
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        };
        let task = rt.spawn("greedy", Box::new(body));
        for _ in 0..50 {
            drop(lock.lock());
        }
        stop.store(true, Ordering::Relaxed);
        task.join(&*rt);
    }

    #[test]
    fn a_writer_gets_in_among_a_stream_of_readers() {
        let rt = Live::new();
        let lock = Arc::new(RwLock::new(Arc::clone(&rt), ()));
        let stop = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (lock, stop) = (Arc::clone(&lock), Arc::clone(&stop));
                let body = move || {
                    while !stop.load(Ordering::Relaxed) {
                        let _guard = lock.read();
                        std::thread::sleep(std::time::Duration::from_micros(200));
                    }
                };
                rt.spawn("reader", Box::new(body))
            })
            .collect();
        for _ in 0..20 {
            drop(lock.write());
        }
        stop.store(true, Ordering::Relaxed);
        readers.iter().for_each(|t| t.join(&*rt));
    }
}
