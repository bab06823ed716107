// SPDX-License-Identifier: Apache-2.0
/*
 * Reduces and broadcasts with gloo over ibverbs: gloo DEVICE GID-INDEX FOLDER RANK SIZE. The
 * processes find each other by files in the folder.
 */
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

namespace
{

void require(bool claim, const char *what)
{
	if (!claim) {
		std::fprintf(stderr, "wrong result: %s\n", what);
		std::exit(1);
	}
}

// Every process contributes its rank plus i to element i.
template <typename Algorithm> void reduce(const std::shared_ptr<gloo::Context> &c, const char *name)
{
	auto &v = *new std::vector<float>(100000);
	auto &algorithm = *new Algorithm(c, {v.data()}, static_cast<int>(v.size()));
	for (int round = 0; round < 10; round++) {
		for (size_t i = 0; i < v.size(); i++)
			v[i] = static_cast<float>(c->rank + i % 1000);
		algorithm.run();
		for (size_t i = 0; i < v.size(); i++)
			require(v[i] == static_cast<float>(c->size * (c->size - 1) / 2 +
							   c->size * (i % 1000)),
				name);
	}
}

void broadcast(const std::shared_ptr<gloo::Context> &c)
{
	auto &v = *new std::vector<int>(5000, c->rank);
	auto &algorithm = *new gloo::BroadcastOneToAll<int>(
		c, {v.data()}, static_cast<int>(v.size()), c->size - 1);
	algorithm.run();
	for (int x : v)
		require(x == c->size - 1, "broadcast");
}

} // namespace

int main(int argc, char **argv)
{
	require(argc == 6, "arguments");
	gloo::transport::ibverbs::attr attr{argv[1], 1, std::atoi(argv[2])};
	auto device = gloo::transport::ibverbs::CreateDevice(attr);
	gloo::rendezvous::FileStore store(argv[3]);
	auto context =
		std::make_shared<gloo::rendezvous::Context>(std::atoi(argv[4]), std::atoi(argv[5]));
	context->connectFullMesh(store, device);
	reduce<gloo::AllreduceRingChunked<float>>(context, "ring");
	reduce<gloo::AllreduceHalvingDoubling<float>>(context, "halving and doubling");
	broadcast(context);
	auto &barrier = *new gloo::BarrierAllToAll(context);
	barrier.run();
	std::printf("rank %d of %d is done\n", context->rank, context->size);
	std::fflush(stdout);
	std::vector<std::string> done;
	for (int r = 0; r < context->size; r++)
		done.push_back("done" + std::to_string(r));
	store.set(done[context->rank], {});
	store.wait(done);
	std::_Exit(0);
}
