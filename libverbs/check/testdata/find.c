/* Looks for a daemon. */
#include <infiniband/verbs.h>

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	if (list)
		ibv_free_device_list(list);
	return 0;
}
