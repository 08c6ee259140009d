/* The parts of ESP-IDF, FreeRTOS and esp-mqtt that the example uses, with threads of POSIX. As in
   esp-mqtt, one lock is held while the client connects, dispatches an event or takes a message. */
#ifndef ESP_IDF_H
#define ESP_IDF_H
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define portMAX_DELAY 0xffffffffu
enum { MQTT_EVENT_ANY = -1, MQTT_EVENT_CONNECTED = 1, MQTT_EVENT_DISCONNECTED, MQTT_EVENT_DATA };

typedef pthread_mutex_t *SemaphoreHandle_t;
typedef void *esp_event_base_t;
typedef void *esp_mqtt_client_handle_t;
typedef void (*event_handler)(void *, esp_event_base_t, int32_t, void *);

typedef struct {
    char *data;
    int data_len, total_data_len;
} esp_mqtt_event_t, *esp_mqtt_event_handle_t;

typedef struct {
    struct { struct { const char *uri; } address; } broker;
    struct { const char *client_id; } credentials;
    struct { int size; } buffer;
} esp_mqtt_client_config_t;

static inline SemaphoreHandle_t xSemaphoreCreateMutex(void)
{
    SemaphoreHandle_t mutex = malloc(sizeof *mutex);
    pthread_mutex_init(mutex, 0);
    return mutex;
}

static inline void xSemaphoreTake(SemaphoreHandle_t mutex, uint32_t ticks)
{
    (void)ticks;
    pthread_mutex_lock(mutex);
}

static inline void xSemaphoreGive(SemaphoreHandle_t mutex)
{
    pthread_mutex_unlock(mutex);
}

static inline void vTaskDelay(int ticks)
{
    usleep(1000u * (unsigned)ticks);
}

static inline int64_t esp_timer_get_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static inline void esp_fill_random(void *bytes, size_t size)
{
    unsigned char *byte = bytes;
    while (size--)
        *byte++ = (unsigned char)rand();
}

esp_mqtt_client_handle_t esp_mqtt_client_init(const esp_mqtt_client_config_t *settings);
void esp_mqtt_client_register_event(esp_mqtt_client_handle_t client, int id, event_handler handler,
                                    void *context);
void esp_mqtt_client_start(esp_mqtt_client_handle_t client);
int esp_mqtt_client_enqueue(esp_mqtt_client_handle_t client, const char *topic, const char *data,
                            int size, int qos, int retain, bool store);
int esp_mqtt_client_subscribe(esp_mqtt_client_handle_t client, const char *topic, int qos);
#endif
