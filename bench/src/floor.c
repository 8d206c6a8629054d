/* Measures the floors of a load: the cost of its bytes through TCP alone, and of its I/O on a file alone.
 *
 *   floor serve PORT
 *   floor tcp PORT read|write SIZE_BYTES DEPTH RATE SECONDS SERVER_PID
 *   floor file PATH direct|cached read|write SIZE_BYTES DEPTH RATE SECONDS
 *
 * `tcp` sends requests as long as the load's PDUs to `serve`, which answers each with a reply of the load's length and
 * sleeps while there are none; the CPU times are those of the server's process and of this one, the client. `file` uses pread and pwrite
 * in threads that sleep until their I/O completes: the cheapest way to do file I/O without polling. Its CPU time is
 * that of the calls, by the thread's clock, minus the cost of reading the clock. DEPTH, RATE and the output are as
 * in the client. */
#include "load.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#define HEADER_BYTES 48
#define IN_FLIGHT_MAX 1024
#define THREADS_MAX 64
/* I/Os per second for each thread: few enough that arrivals rarely wait for a busy thread. */
#define RATE_OF_A_THREAD 2500.0
#define SAMPLES_MAX (1u << 22)

static uint32_t size_bytes, depth;
static double rate;
static int is_write;

static void print(uint32_t ios, uint64_t elapsed_ns, uint64_t floor_ns, uint64_t client_ns, uint32_t *latencies_ns)
{
	printf("{\"ios\": %" PRIu32 ", \"elapsed_s\": %.6f, \"target_ns\": %" PRIu64 ", \"client_ns\": %" PRIu64,
	       ios, (double)elapsed_ns / 1e9, floor_ns, client_ns);
	printf(", \"p50_us\": %.2f", quantile_us(latencies_ns, ios, 0.5));
	printf(", \"p99_us\": %.2f}\n", quantile_us(latencies_ns, ios, 0.99));
}

/* A connection on which requests are answered in order. */
struct connection {
	int socket;
	uint32_t request_bytes, reply_bytes;
	unsigned char *buffer;
	uint64_t random_state;
	uint64_t meant_ns[IN_FLIGHT_MAX];
	uint32_t sent, done, pending_bytes, measured;
	uint32_t *latencies_ns;
};

static struct connection connect_to(int port)
{
	struct connection this = { .request_bytes = HEADER_BYTES, .reply_bytes = HEADER_BYTES };
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	uint32_t terms[3] = { 0 };
	int on = 1;
	*(is_write ? &this.request_bytes : &this.reply_bytes) += size_bytes;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	this.socket = socket(AF_INET, SOCK_STREAM, 0);
	if (this.socket < 0 || connect(this.socket, (struct sockaddr *)&address, sizeof address) ||
	    setsockopt(this.socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on))
		fail("connecting to the floor's server");
	terms[0] = htonl(this.request_bytes);
	terms[1] = htonl(this.reply_bytes);
	if (write(this.socket, terms, sizeof terms) != sizeof terms)
		fail("sending to the floor's server");
	this.buffer = calloc(1, 1 << 18);
	this.latencies_ns = malloc(SAMPLES_MAX * sizeof *this.latencies_ns);
	this.random_state = 1;
	if (!this.buffer || !this.latencies_ns || this.request_bytes > 1 << 18)
		fail("memory");
	return this;
}

static void send_request(struct connection *this, uint64_t meant_ns)
{
	this->meant_ns[this->sent++ % IN_FLIGHT_MAX] = meant_ns;
	for (uint32_t sent = 0; sent < this->request_bytes;) {
		ssize_t count = write(this->socket, this->buffer, this->request_bytes - sent);
		if (count < 0)
			fail("sending to the floor's server");
		sent += (uint32_t)count;
	}
}

static void receive_replies(struct connection *this)
{
	ssize_t count = recv(this->socket, this->buffer, 1 << 18, MSG_DONTWAIT);
	if (count == 0 || (count < 0 && errno != EAGAIN))
		fail("receiving from the floor's server");
	this->pending_bytes += count < 0 ? 0 : (uint32_t)count;
	uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
	for (; this->pending_bytes >= this->reply_bytes; this->pending_bytes -= this->reply_bytes) {
		uint64_t meant_ns = this->meant_ns[this->done++ % IN_FLIGHT_MAX];
		if (this->measured < SAMPLES_MAX)
			this->latencies_ns[this->measured++] = clamp_ns(now_ns - meant_ns);
	}
}

/* Loads until end_ns, then waits for what is in flight. */
static void exchange(struct connection *this, uint64_t end_ns)
{
	double next_ns = (double)clock_ns(CLOCK_MONOTONIC);
	for (;;) {
		uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
		int is_over = now_ns >= end_ns;
		if (is_over && this->sent == this->done)
			return;
		struct timespec *timeout = NULL, until_next;
		while (!is_over && rate == 0 && this->sent - this->done < depth)
			send_request(this, now_ns);
		while (!is_over && rate > 0 && next_ns <= (double)now_ns &&
		       this->sent - this->done < IN_FLIGHT_MAX) {
			send_request(this, (uint64_t)next_ns);
			next_ns += next_gap_ns(&this->random_state, rate);
		}
		if (!is_over && rate > 0 && this->sent - this->done < IN_FLIGHT_MAX) {
			double left_ns = next_ns - (double)clock_ns(CLOCK_MONOTONIC);
			uint64_t left = left_ns < 0 ? 0 : (uint64_t)left_ns;
			until_next = (struct timespec){ (time_t)(left / 1000000000), (long)(left % 1000000000) };
			timeout = &until_next;
		}
		struct pollfd polled = { .fd = this->socket, .events = POLLIN };
		if (ppoll(&polled, 1, timeout, NULL) < 0 && errno != EINTR)
			fail("polling");
		if (polled.revents)
			receive_replies(this);
	}
}

static void through_tcp(int port, double seconds, int server_pid)
{
	clockid_t server;
	struct connection connection = connect_to(port);
	if (clock_getcpuclockid(server_pid, &server))
		fail("the floor's server");
	exchange(&connection, clock_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e8));
	connection.measured = 0;
	uint64_t began_ns = clock_ns(CLOCK_MONOTONIC), server_ns = clock_ns(server);
	uint64_t client_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
	exchange(&connection, began_ns + (uint64_t)(seconds * 1e9));
	client_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - client_ns;
	print(connection.measured, clock_ns(CLOCK_MONOTONIC) - began_ns, clock_ns(server) - server_ns, client_ns,
	      connection.latencies_ns);
}

/* One of the threads that do the I/O on a file. */
struct worker {
	pthread_t thread;
	int file;
	double rate;
	uint64_t places, random_state, measured_from_ns, end_ns, io_ns;
	uint32_t done, done_max;
	uint32_t *latencies_ns;
};

/* The CPU time that two readings of the thread's clock take by that clock. */
static uint64_t clock_cost_ns(void)
{
	uint64_t least_ns = UINT64_MAX;
	for (int i = 0; i < 100; i++) {
		uint64_t began_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
		uint64_t cost_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - began_ns;
		least_ns = cost_ns < least_ns ? cost_ns : least_ns;
	}
	return least_ns;
}

static void *work(void *argument)
{
	struct worker *this = argument;
	unsigned char *buffer;
	if (posix_memalign((void **)&buffer, 4096, size_bytes))
		fail("memory");
	memset(buffer, 0x5a, size_bytes);
	prctl(PR_SET_TIMERSLACK, 1ul);
	uint64_t overhead_ns = clock_cost_ns();
	double next_ns = (double)clock_ns(CLOCK_MONOTONIC);
	for (;;) {
		uint64_t meant_ns = clock_ns(CLOCK_MONOTONIC);
		if (this->rate > 0) {
			next_ns += next_gap_ns(&this->random_state, this->rate);
			meant_ns = (uint64_t)next_ns;
			struct timespec until = { (time_t)(meant_ns / 1000000000), (long)(meant_ns % 1000000000) };
			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		}
		if (meant_ns >= this->end_ns)
			return NULL;
		off_t at = (off_t)(next_random(&this->random_state) % this->places * size_bytes);
		uint64_t began_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
		ssize_t count = is_write ? pwrite(this->file, buffer, size_bytes, at)
					 : pread(this->file, buffer, size_bytes, at);
		uint64_t spent_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - began_ns;
		if (count != (ssize_t)size_bytes)
			fail("the file");
		if (meant_ns < this->measured_from_ns || this->done == this->done_max)
			continue;
		this->io_ns += spent_ns > overhead_ns ? spent_ns - overhead_ns : 0;
		this->latencies_ns[this->done++] = clamp_ns(clock_ns(CLOCK_MONOTONIC) - meant_ns);
	}
}

static void on_file(const char *path, int is_direct, double seconds)
{
	static struct worker workers[THREADS_MAX];
	unsigned threads = rate == 0 ? depth : 1;
	while (is_direct && threads < THREADS_MAX && rate / threads > RATE_OF_A_THREAD)
		threads++;
	int file = open(path, O_RDWR | (is_direct ? O_DIRECT : 0));
	off_t length = file < 0 ? -1 : lseek(file, 0, SEEK_END);
	uint32_t *latencies_ns = malloc(SAMPLES_MAX * sizeof *latencies_ns);
	if (length < (off_t)size_bytes || !latencies_ns || threads > THREADS_MAX)
		fail(path);
	/* Like a target, read only what is requested: no read-ahead. */
	posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM);
	uint64_t began_ns = clock_ns(CLOCK_MONOTONIC), end_ns = began_ns + (uint64_t)(seconds * 1.1e9);
	for (unsigned i = 0; i < threads; i++) {
		workers[i] = (struct worker){
			.file = file,
			.rate = rate / threads,
			.places = (uint64_t)length / size_bytes,
			.random_state = i + 1,
			.measured_from_ns = began_ns + (uint64_t)(seconds * 1e8),
			.end_ns = end_ns,
			.done_max = SAMPLES_MAX / threads,
			.latencies_ns = latencies_ns + SAMPLES_MAX / threads * i,
		};
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			fail("starting a thread");
	}
	uint32_t done = 0;
	uint64_t io_ns = 0;
	for (unsigned i = 0; i < threads; i++) {
		pthread_join(workers[i].thread, NULL);
		memmove(latencies_ns + done, workers[i].latencies_ns, workers[i].done * sizeof *latencies_ns);
		done += workers[i].done;
		io_ns += workers[i].io_ns;
	}
	print(done, (uint64_t)(seconds * 1e9), io_ns, 0, latencies_ns);
}

/* Answers the requests of one connection. */
static void *answer(void *argument)
{
	int socket = (int)(intptr_t)argument, on = 1;
	uint32_t terms[3], pending_bytes = 0;
	char *buffer = malloc(1 << 18), *replies = calloc(1, 1 << 18);
	if (!buffer || !replies || setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on))
		fail("serving a connection");
	if (recv(socket, terms, sizeof terms, MSG_WAITALL) == sizeof terms) {
		uint32_t request_bytes = ntohl(terms[0]), reply_bytes = ntohl(terms[1]);
		for (ssize_t count; (count = recv(socket, buffer, 1 << 18, 0)) > 0;) {
			uint64_t owed_bytes = (pending_bytes + (uint64_t)count) / request_bytes * reply_bytes;
			pending_bytes = (pending_bytes + (uint32_t)count) % request_bytes;
			while (owed_bytes > 0) {
				size_t piece = owed_bytes < 1 << 18 ? owed_bytes : 1 << 18;
				ssize_t sent = send(socket, replies, piece, MSG_NOSIGNAL);
				if (sent < 0)
					break;
				owed_bytes -= (uint64_t)sent;
			}
		}
	}
	close(socket);
	free(buffer);
	free(replies);
	return NULL;
}

static void serve(int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64))
		fail("listening");
	for (;;) {
		pthread_t thread;
		int accepted = accept(listener, NULL, NULL);
		if (accepted < 0 || pthread_create(&thread, NULL, answer, (void *)(intptr_t)accepted))
			fail("accepting");
		pthread_detach(thread);
	}
}

int main(int count, char **arguments)
{
	if (count == 3 && !strcmp(arguments[1], "serve"))
		serve(atoi(arguments[2]));
	if (count != 9)
		return 2;
	int is_tcp = !strcmp(arguments[1], "tcp");
	char **load = arguments + (is_tcp ? 3 : 4);
	is_write = !strcmp(load[0], "write");
	size_bytes = (uint32_t)atol(load[1]);
	depth = (uint32_t)atol(load[2]);
	rate = atof(load[3]);
	double seconds = atof(load[4]);
	if (size_bytes < 512 || depth < 1 || depth > IN_FLIGHT_MAX)
		return 2;
	prctl(PR_SET_TIMERSLACK, 1ul);
	if (is_tcp)
		through_tcp(atoi(arguments[2]), seconds, atoi(arguments[8]));
	else
		on_file(arguments[2], !strcmp(arguments[3], "direct"), seconds);
	return 0;
}
