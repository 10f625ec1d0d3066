/* FAKE NVML: test equipment, not NVIDIA's library.
 *
 * Built as libnvidia-ml.so.1 and put first on LD_LIBRARY_PATH, it answers the NVML calls
 * that an ops console makes, from a plain text state file (FAKE_NVML_STATE), which is
 * read again whenever it changes. It touches no GPU. What it says is only what the state
 * file says, or the invented defaults below. It exports fake_nvml_is_fake, so a program
 * can tell: ctypes.CDLL("libnvidia-ml.so.1").fake_nvml_is_fake() == 1.
 *
 * Build:  gcc -O2 -Wall -Wextra -shared -fPIC -pthread \
 *             -Wl,-soname,libnvidia-ml.so.1 -o DIR/libnvidia-ml.so.1 fake_nvml.c
 * State file: see README.md beside this file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25,
       UNKNOWN = 999 };
#define MAX_GPUS 64
#define MAX_PIDS 64
#define MAX_XIDS 1024
#define MIB (1024ULL * 1024ULL)

struct gpu {
    int index;                      /* a handle is a pointer to one of these */
    char name[96], uuid[80], serial[32], vbios[32];
    unsigned long long total_mib, reserved_mib, used_mib, throttle, ecc_corrected,
        ecc_uncorrected, energy_mj;
    unsigned util, mem_util, temp, temp_slowdown, temp_shutdown, power_mw, power_limit_mw,
        clock_graphics, clock_sm, clock_mem, clock_video, clock_max_graphics, clock_max_mem,
        fan, fans, pcie_gen, pcie_width, pcie_max_gen, pcie_max_width, pcie_tx_kb,
        pcie_rx_kb, pcie_replays, cc_major, cc_minor, pstate, persistence, numa,
        remap_correctable, remap_uncorrectable, remap_pending, remap_failed, keep_dead;
    int mig, ecc, nvlink;           /* -1: this board has no such thing */
    unsigned error;                 /* NVML code that every call on this GPU returns; 0: none */
    int n_pids;
    struct { unsigned pid; unsigned long long mib; } pids[MAX_PIDS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gpu gpus[MAX_GPUS], fresh[MAX_GPUS];
static int n_gpus, refcount, n_xids, init_error;
static unsigned latency_us, pcie_window_us;
static int topology[MAX_GPUS][MAX_GPUS], topology_default;
static struct { int gpu; unsigned long long code; } xids[MAX_XIDS];
static char driver[80], nvml[80];
static int cuda;
static struct stat seen;
static int loaded;

int fake_nvml_is_fake(void) { return 1; }

static void defaults(void)
{
    memset(fresh, 0, sizeof fresh);
    n_gpus = 8; n_xids = 0; init_error = 0; latency_us = 0; cuda = 13000;
    pcie_window_us = 20000; /* the real library watches the link for 20 ms */
    topology_default = 40; /* NODE */
    strcpy(driver, "580.00.00"); strcpy(nvml, "FAKE-NVML");
    for (int i = 0; i < MAX_GPUS; i++) {
        struct gpu *g = &fresh[i];
        g->index = i;
        strcpy(g->name, "NVIDIA RTX PRO 6000 Blackwell Server Edition");
        snprintf(g->uuid, sizeof g->uuid, "GPU-fa4e0000-0000-4000-8000-%012d", i);
        snprintf(g->serial, sizeof g->serial, "FAKE%04d", i);
        strcpy(g->vbios, "FAKE");
        g->total_mib = 97887; g->reserved_mib = 600;
        g->temp = 30; g->temp_slowdown = 92; g->temp_shutdown = 95;
        g->power_mw = 35000; g->power_limit_mw = 600000;
        g->clock_graphics = g->clock_sm = g->clock_video = 180; g->clock_mem = 405;
        g->clock_max_graphics = 2430; g->clock_max_mem = 12481;
        g->pcie_gen = 5; g->pcie_width = 16; g->pcie_max_gen = 5; g->pcie_max_width = 16;
        g->cc_major = 12; g->cc_minor = 0; g->pstate = 8; g->persistence = 1;
        g->throttle = 1; /* GPU idle */
        g->mig = -1; g->ecc = 1; g->nvlink = -1;
    }
    for (int i = 0; i < MAX_GPUS; i++)
        for (int j = 0; j < MAX_GPUS; j++) topology[i][j] = -1;
}

static void set_pids(struct gpu *g, char *value)
{
    char *save = NULL;
    g->n_pids = 0;
    for (char *t = strtok_r(value, ", \t", &save); t; t = strtok_r(NULL, ", \t", &save)) {
        unsigned pid; unsigned long long mib;
        if (g->n_pids < MAX_PIDS && sscanf(t, "%u:%llu", &pid, &mib) == 2) {
            g->pids[g->n_pids].pid = pid; g->pids[g->n_pids++].mib = mib;
        }
    }
}

static int set_gpu(struct gpu *g, const char *key, char *value)
{
#define TEXT(k) if (!strcmp(key, #k)) { snprintf(g->k, sizeof g->k, "%s", value); return 1; }
#define NUM(k) if (!strcmp(key, #k)) { g->k = strtoull(value, NULL, 0); return 1; }
#define INT(k) if (!strcmp(key, #k)) { g->k = (int)strtol(value, NULL, 0); return 1; }
    TEXT(name) TEXT(uuid) TEXT(serial) TEXT(vbios)
    NUM(total_mib) NUM(reserved_mib) NUM(used_mib) NUM(throttle) NUM(ecc_corrected)
    NUM(ecc_uncorrected) NUM(energy_mj) NUM(util) NUM(mem_util) NUM(temp)
    NUM(temp_slowdown) NUM(temp_shutdown) NUM(power_mw) NUM(power_limit_mw)
    NUM(clock_graphics) NUM(clock_sm) NUM(clock_mem) NUM(clock_video)
    NUM(clock_max_graphics) NUM(clock_max_mem) NUM(fan) NUM(fans) NUM(pcie_gen)
    NUM(pcie_width) NUM(pcie_max_gen) NUM(pcie_max_width) NUM(pcie_tx_kb) NUM(pcie_rx_kb)
    NUM(pcie_replays) NUM(cc_major) NUM(cc_minor) NUM(pstate) NUM(persistence) NUM(numa)
    NUM(remap_correctable) NUM(remap_uncorrectable) NUM(remap_pending) NUM(remap_failed)
    NUM(keep_dead) NUM(error) INT(mig) INT(ecc) INT(nvlink)
    if (!strcmp(key, "pids")) { set_pids(g, value); return 1; }
    return 0;
}

static void complain(const char *path, int line, const char *text)
{
    fprintf(stderr, "fake NVML: %s:%d: not understood: %s\n", path, line, text);
}

static void load(void) /* with the lock held */
{
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat st;
    if (!path || stat(path, &st)) {
        if (loaded && !seen.st_ino) return;
        memset(&seen, 0, sizeof seen);
        defaults(); memcpy(gpus, fresh, sizeof gpus); loaded = 1;
        return;
    }
    if (loaded && st.st_ino == seen.st_ino && st.st_size == seen.st_size &&
        st.st_mtim.tv_sec == seen.st_mtim.tv_sec && st.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *f = fopen(path, "r");
    if (!f) return;
    defaults();
    char buf[4096];
    for (int line = 1; fgets(buf, sizeof buf, f); line++) {
        char *p = buf + strspn(buf, " \t"), *e, which[32], key[32];
        int used = 0, a, b, n;
        unsigned long long x;
        if ((e = strchr(p, '\n'))) *e = 0;
        if (!*p || *p == '#') continue;
        if (!strncmp(p, "gpu ", 4) && sscanf(p, "gpu %31s %31s %n", which, key, &used) >= 2 && used) {
            if (!strcmp(which, "*")) { a = 0; b = MAX_GPUS - 1; }
            else if ((n = sscanf(which, "%d-%d", &a, &b)) == 1) b = a;
            else if (n != 2) { complain(path, line, p); continue; }
            for (int i = a; i <= b && i >= 0 && i < MAX_GPUS; i++) {
                char value[4096];
                strcpy(value, p + used);
                if (!set_gpu(&fresh[i], key, value)) { complain(path, line, p); break; }
            }
        } else if (sscanf(p, "gpus %d", &a) == 1) n_gpus = a < 0 ? 0 : a > MAX_GPUS ? MAX_GPUS : a;
        else if (sscanf(p, "driver %79s", driver) == 1) ;
        else if (sscanf(p, "nvml %79s", nvml) == 1) ;
        else if (sscanf(p, "cuda %d", &cuda) == 1) ;
        else if (sscanf(p, "init_error %d", &init_error) == 1) ;
        else if (sscanf(p, "latency_us %u", &latency_us) == 1) ;
        else if (sscanf(p, "pcie_window_us %u", &pcie_window_us) == 1) ;
        else if (sscanf(p, "topology %d %d %d", &a, &b, &n) == 3) {
            if (a >= 0 && a < MAX_GPUS && b >= 0 && b < MAX_GPUS)
                topology[a][b] = topology[b][a] = n;
        } else if (sscanf(p, "topology * %d", &n) == 1) topology_default = n;
        else if (sscanf(p, "xid %d %llu", &a, &x) == 2) {
            if (n_xids < MAX_XIDS) { xids[n_xids].gpu = a; xids[n_xids++].code = x; }
        } else complain(path, line, p);
    }
    fclose(f);
    memcpy(gpus, fresh, sizeof gpus);
    seen = st; loaded = 1;
}

/* Begin a call: take the lock, bring the state up to date. */
static int begin(void)
{
    pthread_mutex_lock(&lock);
    if (!refcount) { pthread_mutex_unlock(&lock); return UNINITIALIZED; }
    load();
    if (latency_us) usleep(latency_us);
    return OK;
}
static int end(int rc) { pthread_mutex_unlock(&lock); return rc; }

static int begin_gpu(struct gpu *g)
{
    int rc = begin();
    if (rc) return rc;
    if (g < gpus || g >= gpus + n_gpus) return end(INVALID_ARGUMENT);
    if (g->error) return end((int)g->error);
    return OK;
}
#define BEGIN_GPU(g) do { int rc_ = begin_gpu(g); if (rc_) return rc_; } while (0)

static int put(char *out, unsigned size, const char *text)
{
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

static int alive(struct gpu *g, unsigned pid)
{
    return g->keep_dead || kill((pid_t)pid, 0) == 0 || errno == EPERM;
}

static unsigned long long used_bytes(struct gpu *g)
{
    unsigned long long mib = g->used_mib;
    for (int i = 0; i < g->n_pids; i++)
        if (alive(g, g->pids[i].pid)) mib += g->pids[i].mib;
    if (mib > g->total_mib - g->reserved_mib) mib = g->total_mib - g->reserved_mib;
    return mib * MIB;
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    load();
    if (init_error) return end(init_error);
    refcount++;
    return end(OK);
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    if (!refcount) return end(UNINITIALIZED);
    refcount--;
    return end(OK);
}
const char *nvmlErrorString(int rc)
{
    switch (rc) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case NOT_SUPPORTED: return "Not Supported";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Fake NVML error";
    }
}

int nvmlSystemGetDriverVersion(char *v, unsigned n)
{ int rc = begin(); return rc ? rc : end(put(v, n, driver)); }
int nvmlSystemGetNVMLVersion(char *v, unsigned n)
{ int rc = begin(); return rc ? rc : end(put(v, n, nvml)); }
int nvmlSystemGetCudaDriverVersion(int *v)
{ int rc = begin(); if (rc) return rc; *v = cuda; return end(OK); }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { return nvmlSystemGetCudaDriverVersion(v); }
int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned n)
{
    int rc = begin();
    if (rc) return rc;
    char path[64], buf[256] = "";
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *f = fopen(path, "r");
    if (!f) return end(NOT_FOUND);
    if (!fgets(buf, sizeof buf, f)) buf[0] = 0;
    fclose(f);
    buf[strcspn(buf, "\n")] = 0;
    return end(put(name, n, buf));
}

int nvmlDeviceGetCount_v2(unsigned *n)
{ int rc = begin(); if (rc) return rc; *n = (unsigned)n_gpus; return end(OK); }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, struct gpu **g)
{
    int rc = begin();
    if (rc) return rc;
    if (i >= (unsigned)n_gpus) return end(INVALID_ARGUMENT);
    *g = &gpus[i];
    return end(gpus[i].error == GPU_IS_LOST ? GPU_IS_LOST : OK);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, struct gpu **g)
{
    int rc = begin();
    if (rc) return rc;
    for (int i = 0; i < n_gpus; i++)
        if (!strcmp(gpus[i].uuid, uuid)) { *g = &gpus[i]; return end(OK); }
    return end(NOT_FOUND);
}
int nvmlDeviceGetIndex(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = (unsigned)g->index; return end(OK); }
int nvmlDeviceGetMinorNumber(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = (unsigned)g->index; return end(OK); }
int nvmlDeviceGetName(struct gpu *g, char *v, unsigned n)
{ BEGIN_GPU(g); return end(put(v, n, g->name)); }
int nvmlDeviceGetUUID(struct gpu *g, char *v, unsigned n)
{ BEGIN_GPU(g); return end(put(v, n, g->uuid)); }
int nvmlDeviceGetSerial(struct gpu *g, char *v, unsigned n)
{ BEGIN_GPU(g); return end(put(v, n, g->serial)); }
int nvmlDeviceGetVbiosVersion(struct gpu *g, char *v, unsigned n)
{ BEGIN_GPU(g); return end(put(v, n, g->vbios)); }

struct memory_v1 { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo(struct gpu *g, struct memory_v1 *m)
{   /* version 1 counts the reserved part as used */
    BEGIN_GPU(g);
    m->total = g->total_mib * MIB;
    m->used = used_bytes(g) + g->reserved_mib * MIB;
    m->free = m->total - m->used;
    return end(OK);
}
int nvmlDeviceGetMemoryInfo_v2(struct gpu *g, struct memory_v2 *m)
{
    BEGIN_GPU(g);
    if (m->version != 0x02000028) return end(VERSION_MISMATCH);
    m->total = g->total_mib * MIB;
    m->reserved = g->reserved_mib * MIB;
    m->used = used_bytes(g);
    m->free = m->total - m->reserved - m->used;
    return end(OK);
}
struct bar1 { unsigned long long total, free, used; };
int nvmlDeviceGetBAR1MemoryInfo(struct gpu *g, struct bar1 *b)
{ BEGIN_GPU(g); b->total = 131072 * MIB; b->used = MIB; b->free = b->total - MIB; return end(OK); }

struct utilization { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(struct gpu *g, struct utilization *u)
{ BEGIN_GPU(g); u->gpu = g->util; u->memory = g->mem_util; return end(OK); }
int nvmlDeviceGetTemperature(struct gpu *g, unsigned sensor, unsigned *v)
{ BEGIN_GPU(g); *v = g->temp; return end(sensor ? INVALID_ARGUMENT : OK); }
struct temperature_v1 { unsigned version, sensor; int temperature; };
int nvmlDeviceGetTemperatureV(struct gpu *g, struct temperature_v1 *t)
{ BEGIN_GPU(g); t->temperature = (int)g->temp; return end(OK); }
int nvmlDeviceGetTemperatureThreshold(struct gpu *g, unsigned kind, unsigned *v)
{
    BEGIN_GPU(g);
    if (kind == 0) *v = g->temp_shutdown;
    else if (kind == 1) *v = g->temp_slowdown;
    else return end(NOT_SUPPORTED);
    return end(OK);
}
int nvmlDeviceGetPowerUsage(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = g->power_mw; return end(OK); }
int nvmlDeviceGetEnforcedPowerLimit(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = g->power_limit_mw; return end(OK); }
int nvmlDeviceGetPowerManagementLimit(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = g->power_limit_mw; return end(OK); }
int nvmlDeviceGetTotalEnergyConsumption(struct gpu *g, unsigned long long *v)
{ BEGIN_GPU(g); *v = g->energy_mj; return end(OK); }
int nvmlDeviceGetClockInfo(struct gpu *g, unsigned kind, unsigned *v)
{
    BEGIN_GPU(g);
    unsigned c[] = { g->clock_graphics, g->clock_sm, g->clock_mem, g->clock_video };
    if (kind > 3) return end(INVALID_ARGUMENT);
    *v = c[kind];
    return end(OK);
}
int nvmlDeviceGetMaxClockInfo(struct gpu *g, unsigned kind, unsigned *v)
{
    BEGIN_GPU(g);
    if (kind > 3) return end(INVALID_ARGUMENT);
    *v = kind == 2 ? g->clock_max_mem : g->clock_max_graphics;
    return end(OK);
}
int nvmlDeviceGetFanSpeed(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = g->fan; return end(g->fans ? OK : NOT_SUPPORTED); }
int nvmlDeviceGetFanSpeed_v2(struct gpu *g, unsigned fan, unsigned *v)
{ BEGIN_GPU(g); *v = g->fan; return end(fan < g->fans ? OK : g->fans ? INVALID_ARGUMENT : NOT_SUPPORTED); }
int nvmlDeviceGetNumFans(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = g->fans; return end(g->fans ? OK : NOT_SUPPORTED); }
int nvmlDeviceGetPerformanceState(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = g->pstate; return end(OK); }
int nvmlDeviceGetPersistenceMode(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = g->persistence; return end(OK); }
int nvmlDeviceGetComputeMode(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = 0; return end(OK); }
int nvmlDeviceGetNumaNodeId(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = g->numa; return end(OK); }
int nvmlDeviceGetArchitecture(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = 10; return end(OK); } /* Blackwell */
int nvmlDeviceGetCudaComputeCapability(struct gpu *g, int *major, int *minor)
{ BEGIN_GPU(g); *major = (int)g->cc_major; *minor = (int)g->cc_minor; return end(OK); }

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(struct gpu *g, struct pci *p)
{
    BEGIN_GPU(g);
    memset(p, 0, sizeof *p);
    p->bus = (unsigned)(0x10 + 0x10 * g->index) & 0xff;
    p->id = 0x2bb510de;
    snprintf(p->legacy, sizeof p->legacy, "0000:%02X:00.0", p->bus);
    snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", p->bus);
    return end(OK);
}
int nvmlDeviceGetCurrPcieLinkGeneration(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = g->pcie_gen; return end(OK); }
int nvmlDeviceGetCurrPcieLinkWidth(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = g->pcie_width; return end(OK); }
int nvmlDeviceGetMaxPcieLinkGeneration(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = g->pcie_max_gen; return end(OK); }
int nvmlDeviceGetMaxPcieLinkWidth(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = g->pcie_max_width; return end(OK); }
int nvmlDeviceGetPcieThroughput(struct gpu *g, unsigned counter, unsigned *kb)
{
    BEGIN_GPU(g);
    if (counter > 1) return end(INVALID_ARGUMENT);
    *kb = counter == 0 ? g->pcie_tx_kb : g->pcie_rx_kb;
    unsigned window = pcie_window_us;
    end(OK);
    usleep(window);
    return OK;
}
int nvmlDeviceGetPcieReplayCounter(struct gpu *g, unsigned *v)
{ BEGIN_GPU(g); *v = g->pcie_replays; return end(OK); }

struct process { unsigned pid; unsigned long long used; unsigned gi, ci; };
int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *g, unsigned *n, struct process *out)
{
    BEGIN_GPU(g);
    unsigned room = *n, k = 0;
    for (int i = 0; i < g->n_pids; i++) {
        if (!alive(g, g->pids[i].pid)) continue;
        if (out && k < room) {
            out[k].pid = g->pids[i].pid; out[k].used = g->pids[i].mib * MIB;
            out[k].gi = out[k].ci = 0xFFFFFFFFu;
        }
        k++;
    }
    *n = k;
    return end(k > room ? INSUFFICIENT_SIZE : OK);
}
int nvmlDeviceGetComputeRunningProcesses_v2(struct gpu *g, unsigned *n, struct process *out)
{ return nvmlDeviceGetComputeRunningProcesses_v3(g, n, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(struct gpu *g, unsigned *n, struct process *out)
{ (void)out; BEGIN_GPU(g); *n = 0; return end(OK); }

int nvmlDeviceGetMigMode(struct gpu *g, unsigned *current, unsigned *pending)
{
    BEGIN_GPU(g);
    if (g->mig < 0) return end(NOT_SUPPORTED);
    *current = *pending = (unsigned)g->mig;
    return end(OK);
}
int nvmlDeviceGetNvLinkState(struct gpu *g, unsigned link, unsigned *v)
{
    BEGIN_GPU(g);
    if (g->nvlink < 0) return end(NOT_SUPPORTED);
    if (link >= 18) return end(INVALID_ARGUMENT);
    *v = (unsigned)g->nvlink;
    return end(OK);
}
int nvmlDeviceGetTopologyCommonAncestor(struct gpu *a, struct gpu *b, int *level)
{
    BEGIN_GPU(a);
    if (b < gpus || b >= gpus + n_gpus) return end(INVALID_ARGUMENT);
    *level = a == b ? 0 : topology[a->index][b->index] >= 0 ? topology[a->index][b->index]
                                                            : topology_default;
    return end(OK);
}
int nvmlDeviceGetP2PStatus(struct gpu *a, struct gpu *b, unsigned kind, int *status)
{ (void)b; BEGIN_GPU(a); *status = kind == 2 ? 5 /* no NVLink */ : 0; return end(OK); }

int nvmlDeviceGetEccMode(struct gpu *g, unsigned *current, unsigned *pending)
{
    BEGIN_GPU(g);
    if (g->ecc < 0) return end(NOT_SUPPORTED);
    *current = *pending = (unsigned)g->ecc;
    return end(OK);
}
int nvmlDeviceGetTotalEccErrors(struct gpu *g, unsigned type, unsigned counter, unsigned long long *v)
{
    (void)counter;
    BEGIN_GPU(g);
    if (g->ecc <= 0) return end(NOT_SUPPORTED);
    *v = type == 0 ? g->ecc_corrected : g->ecc_uncorrected;
    return end(OK);
}
int nvmlDeviceGetRemappedRows(struct gpu *g, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed)
{
    BEGIN_GPU(g);
    *c = g->remap_correctable; *u = g->remap_uncorrectable;
    *pending = g->remap_pending; *failed = g->remap_failed;
    return end(OK);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(struct gpu *g, unsigned long long *v)
{ BEGIN_GPU(g); *v = g->throttle; return end(OK); }
int nvmlDeviceGetCurrentClocksEventReasons(struct gpu *g, unsigned long long *v)
{ return nvmlDeviceGetCurrentClocksThrottleReasons(g, v); }
int nvmlDeviceGetSupportedClocksThrottleReasons(struct gpu *g, unsigned long long *v)
{ BEGIN_GPU(g); *v = 0x1ff; return end(OK); }
int nvmlDeviceGetSupportedClocksEventReasons(struct gpu *g, unsigned long long *v)
{ return nvmlDeviceGetSupportedClocksThrottleReasons(g, v); }

struct field { unsigned id, scope; long long timestamp, latency; unsigned type; int rc; unsigned long long value; };
int nvmlDeviceGetFieldValues(struct gpu *g, int n, struct field *f)
{
    BEGIN_GPU(g);
    for (int i = 0; i < n; i++) f[i].rc = NOT_SUPPORTED;
    return end(OK);
}

/* Events: each 'xid GPU CODE' line added to the state file after registering comes once. */
struct event_set { int next; unsigned long long watched[MAX_GPUS]; };
struct event { struct gpu *device; unsigned long long type, data; unsigned gi, ci; };
int nvmlEventSetCreate(struct event_set **s)
{
    int rc = begin();
    if (rc) return rc;
    *s = calloc(1, sizeof **s);
    if (*s) (*s)->next = n_xids;
    return end(*s ? OK : UNKNOWN);
}
int nvmlEventSetFree(struct event_set *s) { free(s); return OK; }
int nvmlDeviceGetSupportedEventTypes(struct gpu *g, unsigned long long *v)
{ BEGIN_GPU(g); *v = 8; return end(OK); }
int nvmlDeviceRegisterEvents(struct gpu *g, unsigned long long types, struct event_set *s)
{ BEGIN_GPU(g); s->watched[g->index] |= types; return end(types & ~8ULL ? NOT_SUPPORTED : OK); }
int nvmlEventSetWait_v2(struct event_set *s, struct event *e, unsigned timeout_ms)
{
    for (unsigned waited = 0;; waited += 20) {
        int rc = begin();
        if (rc) return rc;
        if (s->next > n_xids) s->next = n_xids; /* the file was cut */
        while (s->next < n_xids) {
            int i = s->next++, at = xids[i].gpu;
            if (at < 0 || at >= n_gpus || !(s->watched[at] & 8)) continue;
            memset(e, 0, sizeof *e);
            e->device = &gpus[at]; e->type = 8; e->data = xids[i].code;
            e->gi = e->ci = 0xFFFFFFFFu;
            return end(OK);
        }
        end(OK);
        if (waited >= timeout_ms) return TIMEOUT;
        usleep(20000);
    }
}
