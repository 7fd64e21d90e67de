//! The interposed functions' next definitions: the C library's, or a later preloaded library's.

use std::ffi::CStr;
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    FILE, c_char, c_int, c_uint, c_ulong, c_void, epoll_event, iovec, mmsghdr, msghdr, size_t,
    sockaddr, socklen_t, ssize_t, timespec, uid_t,
};

macro_rules! next {
    ($($name:ident($($argument:ty),* $(; $variadic:tt)?) -> $result:ty;)*) => {$(
        /// The next function of this name.
        pub(crate) fn $name() -> unsafe extern "C" fn($($argument),* $(, $variadic)?) -> $result {
            static ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            let address = resolve(&ADDRESS, concat!(stringify!($name), "\0"));
            // SAFETY: a C library's function of this name has this prototype (POSIX, or glibc's
            // manual).
            unsafe { transmute::<*mut c_void, unsafe extern "C" fn($($argument),* $(, $variadic)?) -> $result>(address) }
        }
    )*};
}

next! {
    open(*const c_char, c_int; ...) -> c_int;
    open64(*const c_char, c_int; ...) -> c_int;
    openat(c_int, *const c_char, c_int; ...) -> c_int;
    openat64(c_int, *const c_char, c_int; ...) -> c_int;
    __open_2(*const c_char, c_int) -> c_int;
    __open64_2(*const c_char, c_int) -> c_int;
    __openat_2(c_int, *const c_char, c_int) -> c_int;
    __openat64_2(c_int, *const c_char, c_int) -> c_int;
    fopen(*const c_char, *const c_char) -> *mut FILE;
    fopen64(*const c_char, *const c_char) -> *mut FILE;
    socket(c_int, c_int, c_int) -> c_int;
    close(c_int) -> c_int;
    close_range(c_uint, c_uint, c_int) -> c_int;
    closefrom(c_int) -> ();
    dup(c_int) -> c_int;
    dup2(c_int, c_int) -> c_int;
    dup3(c_int, c_int, c_int) -> c_int;
    fcntl(c_int, c_int; ...) -> c_int;
    fcntl64(c_int, c_int; ...) -> c_int;
    epoll_ctl(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    ioctl(c_int, c_ulong; ...) -> c_int;
    setns(c_int, c_int) -> c_int;
    unshare(c_int) -> c_int;
    setuid(uid_t) -> c_int;
    seteuid(uid_t) -> c_int;
    setreuid(uid_t, uid_t) -> c_int;
    setresuid(uid_t, uid_t, uid_t) -> c_int;
    read(c_int, *mut c_void, size_t) -> ssize_t;
    readv(c_int, *const iovec, c_int) -> ssize_t;
    write(c_int, *const c_void, size_t) -> ssize_t;
    writev(c_int, *const iovec, c_int) -> ssize_t;
    bind(c_int, *const sockaddr, socklen_t) -> c_int;
    connect(c_int, *const sockaddr, socklen_t) -> c_int;
    getsockname(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    getpeername(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    setsockopt(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    getsockopt(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    send(c_int, *const c_void, size_t, c_int) -> ssize_t;
    sendto(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
    sendmsg(c_int, *const msghdr, c_int) -> ssize_t;
    sendmmsg(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;
    recv(c_int, *mut c_void, size_t, c_int) -> ssize_t;
    recvfrom(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    recvmsg(c_int, *mut msghdr, c_int) -> ssize_t;
    recvmmsg(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int;
}

/// Looks a function up once. Threads that are first at the same time find the same address.
fn resolve(known: &AtomicPtr<c_void>, name: &'static str) -> *mut c_void {
    let address = known.load(Ordering::Relaxed);
    if !address.is_null() {
        return address;
    }
    let symbol = CStr::from_bytes_with_nul(name.as_bytes()).map_or(c"".as_ptr(), CStr::as_ptr);
    let address = look_up(symbol);
    known.store(address, Ordering::Relaxed);
    address
}

/// Programs call only functions of their C library, so a missing next definition is fatal.
fn look_up(symbol: *const c_char) -> *mut c_void {
    // SAFETY: `symbol` ends with a zero byte.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, symbol) };
    if address.is_null() {
        std::process::abort();
    }
    address
}
