/* A load generator on libiscsi: its asynchronous calls from one poll loop.
 *
 *   client URL read|write|write-atomic|compare-and-write SIZE_BYTES SESSIONS DEPTH RATE SECONDS TARGET_PID
 *
 * RATE 0 is a closed loop: DEPTH commands in flight on each session. Otherwise commands arrive at random (a
 * Poisson process) at RATE per second on average, and a command's latency counts from its intended start.
 * DEPTH also limits the commands in flight then; arrivals beyond it wait, and their latency includes the wait.
 * COMPARE AND WRITE expects the bytes that all other writers write, and each session uses blocks of its own
 * for it. A warm-up takes the first tenth of the time. The result is one line of JSON.
 *
 * The target's CPU time comes from the CPU clock of its process, which counts nanoseconds of all its threads,
 * including those that have exited. */
#include "load.h"

#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>
#include <poll.h>

#define SESSIONS_MAX 64
#define SAMPLES_MAX (1u << 24)
/* What the lab's load generator fills disks with. */
#define MARK "sanstone lab"

struct command {
	struct session *session;
	uint64_t meant_ns;
	struct command *next_free;
};

enum operation { READ, WRITE, WRITE_ATOMIC, COMPARE_AND_WRITE };

struct session {
	struct iscsi_context *iscsi;
	int lun;
	unsigned number;
	struct command *free;
};

static struct session sessions[SESSIONS_MAX];
static struct pollfd polled[SESSIONS_MAX];
static uint64_t random_state = 1;
static unsigned session_count, depth, in_flight;
static uint32_t size_bytes, block_bytes;
static uint64_t places;
static enum operation operation;
static int is_measuring;
static unsigned char *payload;
static uint32_t *latencies_ns;
static uint32_t done_count;

static void die(const char *what, struct iscsi_context *iscsi)
{
	fprintf(stderr, "%s: %s\n", what, iscsi_get_error(iscsi));
	exit(1);
}

static void ended(struct iscsi_context *iscsi, int status, void *data, void *private)
{
	struct command *command = private;
	if (status != SCSI_STATUS_GOOD)
		die("a command failed", iscsi);
	scsi_free_scsi_task(data);
	if (is_measuring && done_count < SAMPLES_MAX)
		latencies_ns[done_count++] = clamp_ns(clock_ns(CLOCK_MONOTONIC) - command->meant_ns);
	command->next_free = command->session->free;
	command->session->free = command;
	in_flight--;
}

static void send_one(struct session *session, uint64_t meant_ns)
{
	struct command *command = session->free;
	uint64_t place = next_random(&random_state) % places;
	struct scsi_task *task = NULL;

	if (operation == COMPARE_AND_WRITE)
		place = place / session_count * session_count + session->number;
	uint64_t lba = place % places * (size_bytes / block_bytes);
	session->free = command->next_free;
	command->meant_ns = meant_ns;
	switch (operation) {
	case READ:
		task = iscsi_read16_task(session->iscsi, session->lun, lba, size_bytes, block_bytes,
					 0, 0, 0, 0, 0, ended, command);
		break;
	case WRITE:
		task = iscsi_write16_task(session->iscsi, session->lun, lba, payload, size_bytes, block_bytes,
					  0, 0, 0, 0, 0, ended, command);
		break;
	case WRITE_ATOMIC:
		task = iscsi_writeatomic16_task(session->iscsi, session->lun, lba, payload, size_bytes,
						block_bytes, 0, 0, 0, 0, ended, command);
		break;
	case COMPARE_AND_WRITE:
		task = iscsi_compareandwrite_task(session->iscsi, session->lun, lba, payload, 2 * size_bytes,
						  block_bytes, 0, 0, 0, 0, 0, ended, command);
		break;
	}
	if (!task)
		die("sending a command", session->iscsi);
	in_flight++;
}

static void wait_for_events(int64_t timeout_ns)
{
	struct timespec timeout = { timeout_ns / 1000000000, timeout_ns % 1000000000 };
	for (unsigned i = 0; i < session_count; i++) {
		polled[i].fd = iscsi_get_fd(sessions[i].iscsi);
		polled[i].events = (short)iscsi_which_events(sessions[i].iscsi);
	}
	if (ppoll(polled, session_count, timeout_ns < 0 ? NULL : &timeout, NULL) < 0 && errno != EINTR)
		fail("polling");
	for (unsigned i = 0; i < session_count; i++)
		if (polled[i].revents && iscsi_service(sessions[i].iscsi, polled[i].revents) < 0)
			die("the connection", sessions[i].iscsi);
}

/* Loads until end_ns, then waits for what is in flight. */
static void load(double rate, uint64_t end_ns)
{
	double next_ns = (double)clock_ns(CLOCK_MONOTONIC);
	unsigned turn = 0;
	for (;;) {
		uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
		int is_over = now_ns >= end_ns;
		int64_t timeout_ns = -1;
		if (!is_over && rate == 0) {
			for (unsigned i = 0; i < session_count; i++)
				while (sessions[i].free)
					send_one(&sessions[i], now_ns);
		} else if (!is_over) {
			while (next_ns <= (double)now_ns && in_flight < depth * session_count) {
				while (!sessions[turn % session_count].free)
					turn++;
				send_one(&sessions[turn++ % session_count], (uint64_t)next_ns);
				next_ns += next_gap_ns(&random_state, rate);
			}
			if (in_flight < depth * session_count) {
				timeout_ns = (int64_t)(next_ns - (double)clock_ns(CLOCK_MONOTONIC));
				if (timeout_ns < 0)
					timeout_ns = 0;
			}
		}
		if (is_over && in_flight == 0)
			return;
		wait_for_events(is_over && timeout_ns < 0 ? 1000000000 : timeout_ns);
	}
}

static void open_session(struct session *session, const char *url_text)
{
	session->iscsi = iscsi_create_context("iqn.2026-11.io.sanstone:stock-client");
	if (!session->iscsi)
		fail("making a context");
	struct iscsi_url *url = iscsi_parse_full_url(session->iscsi, url_text);
	if (!url)
		die("the URL", session->iscsi);
	iscsi_set_session_type(session->iscsi, ISCSI_SESSION_NORMAL);
	iscsi_set_header_digest(session->iscsi, ISCSI_HEADER_DIGEST_NONE);
	iscsi_set_targetname(session->iscsi, url->target);
	if (iscsi_full_connect_sync(session->iscsi, url->portal, url->lun))
		die("logging in", session->iscsi);
	session->lun = url->lun;
	iscsi_destroy_url(url);
	struct scsi_task *task = iscsi_readcapacity16_sync(session->iscsi, session->lun);
	struct scsi_readcapacity16 *capacity =
		task && task->status == SCSI_STATUS_GOOD ? scsi_datain_unmarshall(task) : NULL;
	if (!capacity)
		die("READ CAPACITY (16)", session->iscsi);
	block_bytes = capacity->block_length;
	places = (capacity->returned_lba + 1) * block_bytes / size_bytes;
	scsi_free_scsi_task(task);
	for (unsigned i = 0; i < depth; i++) {
		struct command *command = calloc(1, sizeof *command);
		if (!command)
			fail("memory");
		command->session = session;
		command->next_free = session->free;
		session->free = command;
	}
}

int main(int count, char **arguments)
{
	if (count != 9) {
		fprintf(stderr, "client URL OPERATION SIZE SESSIONS DEPTH RATE SECONDS TARGET_PID\n");
		return 2;
	}
	static const char *const names[] = { "read", "write", "write-atomic", "compare-and-write" };
	while (strcmp(arguments[2], names[operation]))
		if (++operation > COMPARE_AND_WRITE)
			return 2;
	size_bytes = (uint32_t)atol(arguments[3]);
	session_count = (unsigned)atoi(arguments[4]);
	depth = (unsigned)atoi(arguments[5]);
	double rate = atof(arguments[6]), seconds = atof(arguments[7]);
	if (session_count < 1 || session_count > SESSIONS_MAX || depth < 1 || size_bytes < 512)
		return 2;
	clockid_t target;
	if (clock_getcpuclockid(atoi(arguments[8]), &target))
		fail("the target's process");
	prctl(PR_SET_TIMERSLACK, 1ul);
	payload = malloc(2 * size_bytes);
	latencies_ns = malloc(SAMPLES_MAX * sizeof *latencies_ns);
	if (!payload || !latencies_ns)
		fail("memory");
	/* The lab's load generator fills disks with the same bytes, and COMPARE AND WRITE expects them. */
	memset(payload, 0, 2 * size_bytes);
	for (size_t sector = 0; sector < 2 * (size_t)size_bytes; sector += 512)
		memcpy(payload + sector, MARK, sizeof MARK - 1);
	for (unsigned i = 0; i < session_count; i++)
		sessions[i].number = i, open_session(&sessions[i], arguments[1]);

	load(rate, clock_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e8));
	is_measuring = 1;
	uint64_t began_ns = clock_ns(CLOCK_MONOTONIC);
	uint64_t target_ns = clock_ns(target), client_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
	load(rate, began_ns + (uint64_t)(seconds * 1e9));
	target_ns = clock_ns(target) - target_ns;
	client_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - client_ns;
	uint64_t elapsed_ns = clock_ns(CLOCK_MONOTONIC) - began_ns;

	printf("{\"ios\": %" PRIu32 ", \"elapsed_s\": %.6f, \"target_ns\": %" PRIu64 ", \"client_ns\": %" PRIu64,
	       done_count, (double)elapsed_ns / 1e9, target_ns, client_ns);
	printf(", \"p50_us\": %.2f", quantile_us(latencies_ns, done_count, 0.5));
	printf(", \"p99_us\": %.2f}\n", quantile_us(latencies_ns, done_count, 0.99));
	for (unsigned i = 0; i < session_count; i++)
		iscsi_logout_sync(sessions[i].iscsi);
	return 0;
}
