/*
 * The few calls of Intel's ipsec-mb that uxfrm-crypto makes, with plain structs in between, so that the Rust side
 * depends on no layout of the library's own. Lengths and pointers were checked on the Rust side; nothing here is
 * re-checked, and the library's unchecked entry points are used.
 */
#include <immintrin.h>
#include <intel-ipsec-mb.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if IMB_VERSION_NUM < IMB_VERSION(1, 3, 0)
#error "uxfrm needs ipsec-mb 1.3 or later (cipher and hash bursts)"
#endif

#define BURST 64 /* as in ipsec_mb/burst.rs */

/* Sizes and alignments that ipsec_mb/keys.rs counts on. */
_Static_assert(sizeof(struct gcm_key_data) <= 1008, "GcmKey's data is 1008 bytes");
_Static_assert(BURST <= IMB_MAX_BURST_SIZE, "a burst fits the library's");

struct worker {
        IMB_MGR *mgr;
        IMB_JOB jobs[BURST]; /* for the synchronous bursts; the others use the manager's own */
};

struct cipher_job {
        const uint8_t *keys;
        const uint8_t *src;
        uint8_t *dst;
        const uint8_t *iv;
        uint64_t len;
};

struct mac_job {
        const uint8_t *keys[3];
        const uint8_t *src;
        uint64_t len;
        uint8_t *tag;
};

struct aead_job {
        const uint8_t *keys;
        const uint8_t *src;
        uint8_t *dst;
        uint64_t len;
        const uint8_t *nonce;
        const uint8_t *aad;
        uint64_t aad_len;
        uint8_t *tag;
};

/* The tag goes to own_tag where tag is NULL. */
struct gcm_job {
        const uint8_t *keys;
        const uint8_t *src;
        uint8_t *dst;
        uint64_t len;
        uint8_t *tag;
        uint64_t aad_len;
        uint8_t nonce[12];
        uint8_t aad[12];
        uint8_t own_tag[16];
};

/* The numbers of ipsec_mb/ffi.rs; those of AEADs are in transform/algorithm.rs. */
enum { CIPHER_CBC = 0, CIPHER_CTR = 1 };
enum { MAC_SHA1 = 0, MAC_SHA256 = 1, MAC_SHA384 = 2, MAC_SHA512 = 3, MAC_XCBC = 4, MAC_CMAC128 = 5, MAC_CMAC256 = 6 };
enum { AEAD_CHACHA = 0, AEAD_CCM = 1 };

void uxfrm_imb_free(struct worker *worker)
{
        if (worker == NULL)
                return;
        if (worker->mgr != NULL) {
                imb_clear_mem(worker->mgr, imb_get_mb_mgr_size());
                free_mb_mgr(worker->mgr);
        }
        imb_clear_mem(worker->jobs, sizeof(worker->jobs));
        free(worker);
}

/* NULL when there is no memory, or the library does not run on this processor or fails its self-test. */
struct worker *uxfrm_imb_new(void)
{
        struct worker *worker = calloc(1, sizeof(*worker));
        IMB_ARCH arch = IMB_ARCH_NONE;

        if (worker == NULL)
                return NULL;
        worker->mgr = alloc_mb_mgr(0);
        if (worker->mgr != NULL)
                init_mb_mgr_auto(worker->mgr, &arch);
        if (worker->mgr == NULL || arch == IMB_ARCH_NONE || imb_get_errno(worker->mgr) != 0) {
                uxfrm_imb_free(worker);
                return NULL;
        }
        return worker;
}

void uxfrm_imb_gcm_key(const struct worker *worker, const uint8_t *key, uint32_t bits, void *out)
{
        switch (bits) {
        case 128: IMB_AES128_GCM_PRE(worker->mgr, key, out); break;
        case 192: IMB_AES192_GCM_PRE(worker->mgr, key, out); break;
        default: IMB_AES256_GCM_PRE(worker->mgr, key, out); break;
        }
}

void uxfrm_imb_aes_keys(const struct worker *worker, const uint8_t *key, uint32_t bits, void *enc, void *dec)
{
        switch (bits) {
        case 128: IMB_AES_KEYEXP_128(worker->mgr, key, enc, dec); break;
        case 192: IMB_AES_KEYEXP_192(worker->mgr, key, enc, dec); break;
        default: IMB_AES_KEYEXP_256(worker->mgr, key, enc, dec); break;
        }
}

/* key: the HMAC key, shortened and padded to 128 bytes of which one hash block is used. */
void uxfrm_imb_hmac_keys(const struct worker *worker, uint32_t mac, const uint8_t *key, uint8_t *inner, uint8_t *outer)
{
        DECLARE_ALIGNED(uint8_t block[2][128], 64);

        for (size_t i = 0; i < 128; i++) {
                block[0][i] = key[i] ^ 0x36;
                block[1][i] = key[i] ^ 0x5c;
        }
        for (int side = 0; side < 2; side++) {
                uint8_t *out = side ? outer : inner;
                switch (mac) {
                case MAC_SHA1: worker->mgr->sha1_one_block(block[side], out); break;
                case MAC_SHA256: worker->mgr->sha256_one_block(block[side], out); break;
                case MAC_SHA384: worker->mgr->sha384_one_block(block[side], out); break;
                default: worker->mgr->sha512_one_block(block[side], out); break;
                }
        }
        imb_clear_mem(block, sizeof(block));
}

void uxfrm_imb_xcbc_keys(const struct worker *worker, const uint8_t *key, void *chain, void *whole, void *padded)
{
        IMB_AES_XCBC_KEYEXP(worker->mgr, key, chain, whole, padded);
}

void uxfrm_imb_cmac_keys(const struct worker *worker, const uint8_t *key, uint32_t bits, void *chain, void *whole,
                         void *padded)
{
        DECLARE_ALIGNED(uint8_t unused[16 * 15], 16);

        uxfrm_imb_aes_keys(worker, key, bits, chain, unused);
        if (bits == 128)
                IMB_AES_CMAC_SUBKEY_GEN_128(worker->mgr, chain, whole, padded);
        else
                IMB_AES_CMAC_SUBKEY_GEN_256(worker->mgr, chain, whole, padded);
        imb_clear_mem(unused, sizeof(unused));
}

/* Powers of the hash key stand at the end of a key, the first one last. */
enum { ROUND_KEYS = 240, POWERS_END = 1008, POWERS = 48 };

/* Lines of a key that a packet needs: the round keys of the shortest keys, and a power of the hash key for each block of text, header and lengths. */
static inline void fetch_key(const struct gcm_job *job)
{
        size_t powers = job->len / 16 + 3;
        size_t first = powers < POWERS ? POWERS_END - 16 * powers : ROUND_KEYS;

        for (size_t at = 0; at < 192; at += 64)
                __builtin_prefetch(job->keys + at);
        for (size_t at = first & ~(size_t)63; at < POWERS_END; at += 64)
                __builtin_prefetch(job->keys + at);
}

/* A packet without others, between whose parts no time passes: salt and IV are joined in a register. */
static void gcm_alone(aes_gcm_enc_dec_t call, struct gcm_job *job, uint64_t tag_len)
{
        struct gcm_context_data context;
        DECLARE_ALIGNED(uint8_t nonce[16], 16);
        uint32_t salt;
        uint64_t iv;

        memcpy(&salt, job->nonce, sizeof(salt));
        memcpy(&iv, job->nonce + sizeof(salt), sizeof(iv));
        _mm_store_si128((__m128i *)nonce, _mm_set_epi64x((long long)(iv >> 32), (long long)(iv << 32 | salt)));
        call((const struct gcm_key_data *)job->keys, &context, job->dst, job->src, job->len, nonce, job->aad, job->aad_len, job->tag, tag_len);
}

/*
 * Packets of one key size and tag length, one call each. What a call reads beside the packet was written before the first call: the library
 * loads it in wider pieces than it was stored in, which must not be too soon after.
 */
static void gcm_burst(aes_gcm_enc_dec_t call, struct gcm_job *jobs, uint32_t n, uint64_t tag_len)
{
        struct gcm_context_data context;

        for (uint32_t i = 0; i < n; i++) {
                struct gcm_job *job = &jobs[i];
                if (i + 2 < n && jobs[i + 2].keys != job->keys)
                        fetch_key(&jobs[i + 2]);
                call((const struct gcm_key_data *)job->keys, &context, job->dst, job->src, job->len, job->nonce, job->aad,
                     job->aad_len, job->tag != NULL ? job->tag : job->own_tag, tag_len);
        }
}

void uxfrm_imb_gcm_seal(const struct worker *worker, uint32_t bits, struct gcm_job *jobs, uint32_t n, uint64_t tag_len)
{
        const IMB_MGR *mgr = worker->mgr;

        aes_gcm_enc_dec_t call = bits == 128 ? mgr->gcm128_enc : bits == 192 ? mgr->gcm192_enc : mgr->gcm256_enc;

        if (n == 1)
                gcm_alone(call, jobs, tag_len);
        else
                gcm_burst(call, jobs, n, tag_len);
}

void uxfrm_imb_gcm_open(const struct worker *worker, uint32_t bits, struct gcm_job *jobs, uint32_t n, uint64_t tag_len)
{
        const IMB_MGR *mgr = worker->mgr;

        gcm_burst(bits == 128 ? mgr->gcm128_dec : bits == 192 ? mgr->gcm192_dec : mgr->gcm256_dec, jobs, n, tag_len);
}

/* The tag over aad, then src: in two pieces, so that neither must be moved. */
void uxfrm_imb_gmac(const struct worker *worker, uint32_t bits, const struct aead_job *job, uint64_t tag_len)
{
        IMB_MGR *mgr = worker->mgr;
        const struct gcm_key_data *key = (const struct gcm_key_data *)job->keys;
        struct gcm_context_data context;

        switch (bits) {
        case 128:
                IMB_AES128_GMAC_INIT(mgr, key, &context, job->nonce, 12);
                IMB_AES128_GMAC_UPDATE(mgr, key, &context, job->aad, job->aad_len);
                IMB_AES128_GMAC_UPDATE(mgr, key, &context, job->src, job->len);
                IMB_AES128_GMAC_FINALIZE(mgr, key, &context, job->tag, tag_len);
                break;
        case 192:
                IMB_AES192_GMAC_INIT(mgr, key, &context, job->nonce, 12);
                IMB_AES192_GMAC_UPDATE(mgr, key, &context, job->aad, job->aad_len);
                IMB_AES192_GMAC_UPDATE(mgr, key, &context, job->src, job->len);
                IMB_AES192_GMAC_FINALIZE(mgr, key, &context, job->tag, tag_len);
                break;
        default:
                IMB_AES256_GMAC_INIT(mgr, key, &context, job->nonce, 12);
                IMB_AES256_GMAC_UPDATE(mgr, key, &context, job->aad, job->aad_len);
                IMB_AES256_GMAC_UPDATE(mgr, key, &context, job->src, job->len);
                IMB_AES256_GMAC_FINALIZE(mgr, key, &context, job->tag, tag_len);
                break;
        }
}

/* At most BURST jobs of one key size and direction; synchronous. Returns how many were done. */
uint32_t uxfrm_imb_cipher_burst(struct worker *worker, uint32_t cipher, uint32_t encrypt, uint32_t key_len,
                                const struct cipher_job *todo, uint32_t n)
{
        const IMB_CIPHER_DIRECTION direction = encrypt ? IMB_DIR_ENCRYPT : IMB_DIR_DECRYPT;
        const IMB_CIPHER_MODE mode = cipher == CIPHER_CBC ? IMB_CIPHER_CBC : IMB_CIPHER_CNTR;

        for (uint32_t i = 0; i < n; i++) {
                IMB_JOB *job = &worker->jobs[i];
                job->enc_keys = todo[i].keys;
                job->dec_keys = todo[i].keys;
                job->key_len_in_bytes = key_len;
                job->src = todo[i].src;
                job->dst = todo[i].dst;
                job->cipher_start_src_offset_in_bytes = 0;
                job->msg_len_to_cipher_in_bytes = todo[i].len;
                job->iv = todo[i].iv;
                job->iv_len_in_bytes = 16;
                job->cipher_mode = mode;
                job->cipher_direction = direction;
                job->hash_alg = IMB_AUTH_NULL;
                job->chain_order = IMB_ORDER_CIPHER_HASH;
                job->status = IMB_STATUS_BEING_PROCESSED;
        }
        return IMB_SUBMIT_CIPHER_BURST_NOCHECK(worker->mgr, worker->jobs, n, mode, direction,
                                               (IMB_KEY_SIZE_BYTES)key_len);
}

/* Submits and flushes: jobs left in flight across calls come back stale once the ring has wrapped. */
static uint32_t run_burst(IMB_MGR *mgr, IMB_JOB **jobs, uint32_t n)
{
        uint32_t done = 0, some = IMB_SUBMIT_BURST_NOCHECK(mgr, n, jobs);

        for (;;) {
                for (uint32_t i = 0; i < some; i++)
                        done += jobs[i]->status == IMB_STATUS_COMPLETED;
                if (IMB_QUEUE_SIZE(mgr) == 0)
                        return done;
                some = IMB_FLUSH_BURST(mgr, n, jobs);
                if (some == 0)
                        return done;
        }
}

static uint32_t hmac_burst(struct worker *worker, IMB_HASH_ALG alg, uint64_t tag_len, const struct mac_job *todo,
                           uint32_t n)
{
        for (uint32_t i = 0; i < n; i++) {
                IMB_JOB *job = &worker->jobs[i];
                job->src = todo[i].src;
                job->hash_start_src_offset_in_bytes = 0;
                job->msg_len_to_hash_in_bytes = todo[i].len;
                job->auth_tag_output = todo[i].tag;
                job->auth_tag_output_len_in_bytes = tag_len;
                job->u.HMAC._hashed_auth_key_xor_ipad = todo[i].keys[0];
                job->u.HMAC._hashed_auth_key_xor_opad = todo[i].keys[1];
                job->cipher_mode = IMB_CIPHER_NULL;
                job->hash_alg = alg;
                job->status = IMB_STATUS_BEING_PROCESSED;
        }
        return IMB_SUBMIT_HASH_BURST_NOCHECK(worker->mgr, worker->jobs, n, alg);
}

static uint32_t cbc_mac_burst(struct worker *worker, IMB_HASH_ALG alg, const struct mac_job *todo, uint32_t n)
{
        IMB_JOB *jobs[BURST];
        uint32_t taken = 0, done = 0;

        while (taken < n) {
                const uint32_t got = IMB_GET_NEXT_BURST(worker->mgr, n - taken, jobs);
                if (got == 0)
                        return done;
                for (uint32_t i = 0; i < got; i++) {
                        const struct mac_job *from = &todo[taken + i];
                        IMB_JOB *job = jobs[i];
                        job->cipher_mode = IMB_CIPHER_NULL;
                        job->cipher_direction = IMB_DIR_ENCRYPT;
                        job->chain_order = IMB_ORDER_CIPHER_HASH;
                        job->hash_alg = alg;
                        job->src = from->src;
                        job->hash_start_src_offset_in_bytes = 0;
                        job->msg_len_to_hash_in_bytes = from->len;
                        job->auth_tag_output = from->tag;
                        job->auth_tag_output_len_in_bytes = 16;
                        if (alg == IMB_AUTH_AES_XCBC) {
                                job->u.XCBC._k1_expanded = (const uint32_t *)from->keys[0];
                                job->u.XCBC._k2 = from->keys[1];
                                job->u.XCBC._k3 = from->keys[2];
                        } else {
                                job->u.CMAC._key_expanded = from->keys[0];
                                job->u.CMAC._skey1 = from->keys[1];
                                job->u.CMAC._skey2 = from->keys[2];
                        }
                }
                done += run_burst(worker->mgr, jobs, got);
                taken += got;
        }
        return done;
}

/* At most BURST messages; every tag is written in full, but for XCBC, whose first 12 bytes are. Returns how many were done. */
uint32_t uxfrm_imb_mac_burst(struct worker *worker, uint32_t mac, const struct mac_job *todo, uint32_t n)
{
        switch (mac) {
        case MAC_SHA1: return hmac_burst(worker, IMB_AUTH_HMAC_SHA_1, 20, todo, n);
        case MAC_SHA256: return hmac_burst(worker, IMB_AUTH_HMAC_SHA_256, 32, todo, n);
        case MAC_SHA384: return hmac_burst(worker, IMB_AUTH_HMAC_SHA_384, 48, todo, n);
        case MAC_SHA512: return hmac_burst(worker, IMB_AUTH_HMAC_SHA_512, 64, todo, n);
        case MAC_XCBC: return cbc_mac_burst(worker, IMB_AUTH_AES_XCBC, todo, n);
        case MAC_CMAC128: return cbc_mac_burst(worker, IMB_AUTH_AES_CMAC, todo, n);
        default: return cbc_mac_burst(worker, IMB_AUTH_AES_CMAC_256, todo, n);
        }
}

static void fill_aead(IMB_JOB *job, uint32_t aead, uint32_t encrypt, uint32_t key_len, const struct aead_job *from)
{
        job->cipher_direction = encrypt ? IMB_DIR_ENCRYPT : IMB_DIR_DECRYPT;
        job->enc_keys = from->keys;
        job->dec_keys = from->keys;
        job->key_len_in_bytes = key_len;
        job->src = from->src;
        job->dst = from->dst;
        job->cipher_start_src_offset_in_bytes = 0;
        job->msg_len_to_cipher_in_bytes = from->len;
        job->hash_start_src_offset_in_bytes = 0;
        job->msg_len_to_hash_in_bytes = from->len;
        job->iv = from->nonce;
        job->auth_tag_output = from->tag;
        if (aead == AEAD_CHACHA) {
                job->cipher_mode = IMB_CIPHER_CHACHA20_POLY1305;
                job->hash_alg = IMB_AUTH_CHACHA20_POLY1305;
                job->chain_order = encrypt ? IMB_ORDER_CIPHER_HASH : IMB_ORDER_HASH_CIPHER;
                job->iv_len_in_bytes = 12;
                job->u.CHACHA20_POLY1305.aad = from->aad;
                job->u.CHACHA20_POLY1305.aad_len_in_bytes = from->aad_len;
        } else { /* CCM signs the plaintext */
                job->cipher_mode = IMB_CIPHER_CCM;
                job->hash_alg = IMB_AUTH_AES_CCM;
                job->chain_order = encrypt ? IMB_ORDER_HASH_CIPHER : IMB_ORDER_CIPHER_HASH;
                job->iv_len_in_bytes = 11;
                job->u.CCM.aad = from->aad;
                job->u.CCM.aad_len_in_bytes = from->aad_len;
        }
}

/* At most BURST jobs. Decrypts whatever the tag: the caller compares. Returns how many were done. */
uint32_t uxfrm_imb_aead_burst(struct worker *worker, uint32_t aead, uint32_t encrypt, uint32_t key_len,
                              uint64_t tag_len, const struct aead_job *todo, uint32_t n)
{
        IMB_JOB *jobs[BURST];
        uint32_t taken = 0, done = 0;

        while (taken < n) {
                const uint32_t got = IMB_GET_NEXT_BURST(worker->mgr, n - taken, jobs);
                if (got == 0)
                        return done;
                for (uint32_t i = 0; i < got; i++) {
                        fill_aead(jobs[i], aead, encrypt, key_len, &todo[taken + i]);
                        jobs[i]->auth_tag_output_len_in_bytes = tag_len;
                }
                done += run_burst(worker->mgr, jobs, got);
                taken += got;
        }
        return done;
}
