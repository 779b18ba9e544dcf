//! Mutex and atomics for state that is never held across a wait.
//!
//! Without the feature `preempt` these are `parking_lot`'s and `std`'s own types. With it, and only inside of a
//! [`Preemptive`](crate::preempt::Preemptive) runtime, every acquisition, every release and every access to an atomic
//! is a point at which another task may run; a task that finds a mutex taken waits through the scheduler. On other
//! threads they behave as without the feature.

#[cfg(not(feature = "preempt"))]
pub use parking_lot::{Mutex, MutexGuard};
/// The atomics of `std`.
#[cfg(not(feature = "preempt"))]
pub use std::sync::atomic;

#[cfg(feature = "preempt")]
pub use points::{Mutex, MutexGuard, atomic};

/// Marks a point at which a [`Preemptive`](crate::preempt::Preemptive) runtime may run another task.
#[inline(always)]
pub fn point() {
    #[cfg(feature = "preempt")]
    crate::preempt::point();
}

#[cfg(feature = "preempt")]
mod points {
    use std::ops::{Deref, DerefMut};

    use crate::preempt;

    /// A mutual exclusion lock whose acquisition and release are scheduling points.
    #[derive(Default)]
    pub struct Mutex<T: ?Sized> {
        inner: parking_lot::Mutex<T>,
    }

    /// Access to the value that a [`Mutex`] protects; dropping it unlocks.
    pub struct MutexGuard<'a, T: ?Sized> {
        lock: &'a Mutex<T>,
        /// `None` only while it is dropped.
        guard: Option<parking_lot::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        /// Returns an unlocked mutex.
        pub const fn new(value: T) -> Self {
            Mutex { inner: parking_lot::Mutex::new(value) }
        }

        /// Returns the value; consuming the lock shows that no task holds it.
        pub fn into_inner(self) -> T {
            self.inner.into_inner()
        }
    }

    impl<T: ?Sized> Mutex<T> {
        fn address(&self) -> usize {
            std::ptr::from_ref(self).cast::<()>().addr()
        }

        /// Waits until the lock is free and takes it.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            if !preempt::is_task() {
                return MutexGuard { lock: self, guard: Some(self.inner.lock()) };
            }
            preempt::point();
            loop {
                if let Some(guard) = self.inner.try_lock() {
                    return MutexGuard { lock: self, guard: Some(guard) };
                }
                preempt::wait_for_leaf(self.address());
            }
        }

        /// Takes the lock if it is free.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            preempt::point();
            self.inner.try_lock().map(|guard| MutexGuard { lock: self, guard: Some(guard) })
        }

        /// Returns the value without locking: the exclusive borrow rules out other users.
        pub fn get_mut(&mut self) -> &mut T {
            self.inner.get_mut()
        }
    }

    impl<T: ?Sized> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.guard.as_ref().expect("held until dropped")
        }
    }

    impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.guard.as_mut().expect("held until dropped")
        }
    }

    impl<T: ?Sized> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            drop(self.guard.take());
            preempt::leaf_released(self.lock.address());
        }
    }

    impl<T: ?Sized + std::fmt::Debug> std::fmt::Debug for Mutex<T> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.inner.fmt(f)
        }
    }

    impl<T: ?Sized + std::fmt::Debug> std::fmt::Debug for MutexGuard<'_, T> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            (**self).fmt(f)
        }
    }

    /// Atomics whose every access is a scheduling point.
    pub mod atomic {
        use std::sync::atomic;

        pub use atomic::{Ordering, fence};

        use crate::preempt::point;

        macro_rules! accesses {
            ($type:ty: $($name:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*) => {$(
                #[doc = concat!("[`std::sync::atomic`]'s `", stringify!($name), "`, after a scheduling point.")]
                pub fn $name(&self $(, $argument: $kind)*) -> $answer {
                    point();
                    self.0.$name($($argument),*)
                }
            )*};
        }

        macro_rules! atomics {
            ($($name:ident: $value:ty { $($more:tt)* })*) => {$(
                #[doc = concat!("[`std::sync::atomic::", stringify!($name), "`] with scheduling points.")]
                #[derive(Default)]
                pub struct $name(atomic::$name);

                impl $name {
                    /// Returns an atomic that holds `value`.
                    pub const fn new(value: $value) -> Self {
                        $name(atomic::$name::new(value))
                    }

                    /// Returns the value and consumes the atomic.
                    pub fn into_inner(self) -> $value {
                        self.0.into_inner()
                    }

                    /// Returns the value without a scheduling point: the exclusive borrow rules out other users.
                    pub fn get_mut(&mut self) -> &mut $value {
                        self.0.get_mut()
                    }

                    /// Calls `fetch_update` of [`std::sync::atomic`], after a scheduling point.
                    ///
                    /// # Errors
                    /// The value it holds, if `change` returns `None`.
                    pub fn fetch_update(
                        &self,
                        set: Ordering,
                        get: Ordering,
                        change: impl FnMut($value) -> Option<$value>,
                    ) -> Result<$value, $value> {
                        point();
                        self.0.fetch_update(set, get, change)
                    }

                    accesses! { $name:
                        load(order: Ordering) -> $value;
                        store(value: $value, order: Ordering) -> ();
                        swap(value: $value, order: Ordering) -> $value;
                        compare_exchange(was: $value, new: $value, set: Ordering, get: Ordering) -> Result<$value, $value>;
                        $($more)*
                    }
                }

                impl std::fmt::Debug for $name {
                    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        self.0.fmt(f)
                    }
                }
            )*};
        }

        macro_rules! numbers {
            ($($name:ident: $value:ty;)*) => {
                atomics! {$($name: $value {
                    fetch_add(value: $value, order: Ordering) -> $value;
                    fetch_sub(value: $value, order: Ordering) -> $value;
                    fetch_max(value: $value, order: Ordering) -> $value;
                    fetch_min(value: $value, order: Ordering) -> $value;
                })*}
            };
        }

        numbers! {
            AtomicI64: i64;
            AtomicU32: u32;
            AtomicU64: u64;
            AtomicUsize: usize;
        }
        atomics! {
            AtomicBool: bool {
                fetch_or(value: bool, order: Ordering) -> bool;
                fetch_and(value: bool, order: Ordering) -> bool;
            }
        }
    }
}
