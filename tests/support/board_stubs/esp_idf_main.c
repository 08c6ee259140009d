/* Runs the example for esp-mqtt against a client without a network. With the argument "down" the
   client connects in vain; else foreign messages arrive all the time. Prints the number of
   messages that the client took, and the ms of the slowest answer. */
#define _GNU_SOURCE /* for the recursive mutex */
#include "esp_idf.h"
#include <stdio.h>
#include <string.h>

void offload_begin(const char *broker_url);
int classify(void);

static pthread_mutex_t api_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static event_handler handler;
static int is_down;
static int n_taken;
static volatile int n_dispatched;

esp_mqtt_client_handle_t esp_mqtt_client_init(const esp_mqtt_client_config_t *settings)
{
    (void)settings;
    return &api_lock;
}

void esp_mqtt_client_register_event(esp_mqtt_client_handle_t client, int id,
                                    event_handler new_handler, void *context)
{
    (void)client, (void)id, (void)context;
    handler = new_handler;
}

int esp_mqtt_client_enqueue(esp_mqtt_client_handle_t client, const char *topic, const char *data,
                            int size, int qos, int retain, bool store)
{
    (void)client, (void)topic, (void)data, (void)size, (void)qos, (void)retain, (void)store;
    pthread_mutex_lock(&api_lock);
    n_taken++;
    pthread_mutex_unlock(&api_lock);
    return 1;
}

int esp_mqtt_client_subscribe(esp_mqtt_client_handle_t client, const char *topic, int qos)
{
    (void)client, (void)topic, (void)qos;
    return 1;
}

static void dispatch(int32_t id)
{
    char text[64] = "foreign";
    esp_mqtt_event_t event = {text, sizeof text, sizeof text};
    usleep(1000); /* reads from the network */
    handler(0, 0, id, &event);
    n_dispatched++;
}

static void *run_client(void *context)
{
    int is_connected = 0;
    for (;;) {
        pthread_mutex_lock(&api_lock);
        if (is_down)
            sleep(2); /* connecting takes up to 10 s */
        else
            dispatch(is_connected++ ? MQTT_EVENT_DATA : MQTT_EVENT_CONNECTED);
        pthread_mutex_unlock(&api_lock);
        usleep(300);
    }
    return context;
}

void esp_mqtt_client_start(esp_mqtt_client_handle_t client)
{
    pthread_t thread;
    (void)client;
    pthread_create(&thread, 0, run_client, 0);
}

int main(int n_arguments, char **arguments)
{
    int i;
    int64_t slowest_ms = 0;
    is_down = n_arguments > 1 && !strcmp(arguments[1], "down");
    offload_begin("mqtt://broker");
    while (!is_down && !n_dispatched) /* until the client has connected */
        usleep(100);
    usleep(1000); /* until the client holds its lock, if it connects */
    for (i = 0; i < (is_down ? 1 : 5); i++) {
        int64_t begin = esp_timer_get_time();
        int64_t ms;
        classify();
        ms = (esp_timer_get_time() - begin) / 1000;
        slowest_ms = ms > slowest_ms ? ms : slowest_ms;
    }
    printf("%d %d\n", n_taken, (int)slowest_ms);
    return 0;
}
