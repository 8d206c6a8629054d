/* Shared by the load generators in C: clocks, random arrivals, quantiles. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;
	if (clock_gettime(clock, &now))
		fail("reading a clock");
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* Time to the next arrival of a Poisson process. */
static double next_gap_ns(uint64_t *state, double rate)
{
	double uniform = ((double)(next_random(state) >> 11) + 1) / 9007199254740993.0;
	return -log(uniform) / rate * 1e9;
}

static uint32_t clamp_ns(uint64_t ns)
{
	return ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
}

static int ascending(const void *a, const void *b)
{
	uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
	return (left > right) - (left < right);
}

static double quantile_us(uint32_t *samples, uint32_t count, double quantile)
{
	if (count == 0)
		return 0;
	qsort(samples, count, sizeof *samples, ascending);
	return samples[(uint32_t)((double)(count - 1) * quantile)] / 1e3;
}
