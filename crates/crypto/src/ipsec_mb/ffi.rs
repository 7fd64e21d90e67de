//! Declarations of `shim/ipsec_mb.c`, layout for layout.

use core::ffi::c_void;

/// Opaque.
#[repr(C)]
pub(super) struct Worker {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CipherJob {
    pub(super) keys: *const u8,
    pub(super) src: *const u8,
    pub(super) dst: *mut u8,
    pub(super) iv: *const u8,
    pub(super) len: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MacJob {
    pub(super) keys: [*const u8; 3],
    pub(super) src: *const u8,
    pub(super) len: u64,
    pub(super) tag: *mut u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AeadJob {
    pub(super) keys: *const u8,
    pub(super) src: *const u8,
    pub(super) dst: *mut u8,
    pub(super) len: u64,
    pub(super) nonce: *const u8,
    pub(super) aad: *const u8,
    pub(super) aad_len: u64,
    pub(super) tag: *mut u8,
}

/// The tag goes to `own_tag` where `tag` is null.
#[repr(C)]
pub(super) struct GcmJob {
    pub(super) keys: *const u8,
    pub(super) src: *const u8,
    pub(super) dst: *mut u8,
    pub(super) len: u64,
    pub(super) tag: *mut u8,
    pub(super) aad_len: u64,
    pub(super) nonce: [u8; 12],
    pub(super) aad: [u8; 12],
    pub(super) own_tag: [u8; 16],
}

impl CipherJob {
    pub(super) const NONE: Self = Self {
        keys: core::ptr::null(),
        src: core::ptr::null(),
        dst: core::ptr::null_mut(),
        iv: core::ptr::null(),
        len: 0,
    };
}

impl MacJob {
    pub(super) const NONE: Self = Self {
        keys: [core::ptr::null(); 3],
        src: core::ptr::null(),
        len: 0,
        tag: core::ptr::null_mut(),
    };
}

impl AeadJob {
    pub(super) const NONE: Self = Self {
        keys: core::ptr::null(),
        src: core::ptr::null(),
        dst: core::ptr::null_mut(),
        len: 0,
        nonce: core::ptr::null(),
        aad: core::ptr::null(),
        aad_len: 0,
        tag: core::ptr::null_mut(),
    };
}

pub(super) const CIPHER_CBC: u32 = 0;
pub(super) const CIPHER_CTR: u32 = 1;

pub(super) const MAC_SHA1: u32 = 0;
pub(super) const MAC_SHA256: u32 = 1;
pub(super) const MAC_SHA384: u32 = 2;
pub(super) const MAC_SHA512: u32 = 3;
pub(super) const MAC_XCBC: u32 = 4;
pub(super) const MAC_CMAC128: u32 = 5;
pub(super) const MAC_CMAC256: u32 = 6;

unsafe extern "C" {
    pub(super) fn uxfrm_imb_new() -> *mut Worker;
    pub(super) fn uxfrm_imb_free(worker: *mut Worker);
    pub(super) fn uxfrm_imb_gcm_key(
        worker: *const Worker,
        key: *const u8,
        bits: u32,
        out: *mut c_void,
    );
    pub(super) fn uxfrm_imb_aes_keys(
        worker: *const Worker,
        key: *const u8,
        bits: u32,
        enc: *mut c_void,
        dec: *mut c_void,
    );
    pub(super) fn uxfrm_imb_hmac_keys(
        worker: *const Worker,
        mac: u32,
        key: *const u8,
        inner: *mut u8,
        outer: *mut u8,
    );
    pub(super) fn uxfrm_imb_xcbc_keys(
        worker: *const Worker,
        key: *const u8,
        chain: *mut c_void,
        whole: *mut c_void,
        padded: *mut c_void,
    );
    pub(super) fn uxfrm_imb_cmac_keys(
        worker: *const Worker,
        key: *const u8,
        bits: u32,
        chain: *mut c_void,
        whole: *mut c_void,
        padded: *mut c_void,
    );
    pub(super) fn uxfrm_imb_gcm_seal(
        worker: *const Worker,
        bits: u32,
        jobs: *mut GcmJob,
        n: u32,
        tag_len: u64,
    );
    pub(super) fn uxfrm_imb_gcm_open(
        worker: *const Worker,
        bits: u32,
        jobs: *mut GcmJob,
        n: u32,
        tag_len: u64,
    );
    pub(super) fn uxfrm_imb_gmac(
        worker: *const Worker,
        bits: u32,
        job: *const AeadJob,
        tag_len: u64,
    );
    pub(super) fn uxfrm_imb_cipher_burst(
        worker: *mut Worker,
        cipher: u32,
        encrypt: u32,
        key_len: u32,
        todo: *const CipherJob,
        n: u32,
    ) -> u32;
    pub(super) fn uxfrm_imb_mac_burst(
        worker: *mut Worker,
        mac: u32,
        todo: *const MacJob,
        n: u32,
    ) -> u32;
    pub(super) fn uxfrm_imb_aead_burst(
        worker: *mut Worker,
        aead: u32,
        encrypt: u32,
        key_len: u32,
        tag_len: u64,
        todo: *const AeadJob,
        n: u32,
    ) -> u32;
}
